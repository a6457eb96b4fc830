import type { ServerResponse } from "node:http";
import { pipeline } from "node:stream/promises";
import { constants, createGzip } from "node:zlib";
import { SandboxError, type SurfaceRequest } from "@coppice/core";
import {
  checkPreconditions,
  chooseCoding,
  isConditional,
  isRangeWanted,
  parseByteRanges,
} from "../headers/request-headers.js";
import {
  inlineDisposition,
  pagePolicy,
  SNIFF_BYTES,
  typeByContent,
  typeByName,
} from "../headers/content-headers.js";
import type { UserFiles } from "../service/file-service.js";
import { partialBody, wholeBody } from "./download-body.js";
import { REASONS } from "../reasons.js";

/** The agent's answer to one read. */
const AT_ONCE_BYTES = 65_536;

interface DownloadRequest {
  readonly request: SurfaceRequest;
  readonly response: ServerResponse;
  readonly path: string;
}

/** GET and HEAD /files: answers as Go's http.ServeContent does, without entity tags. */
export async function sendDownload(files: UserFiles, download: DownloadRequest): Promise<void> {
  const { request, response } = download;
  const { headers } = request;
  await using file = await files.open(download.path);
  const { name, modifiedAtMs, sizeBytes } = file.info;
  const mustBeIdentity = isConditional(headers);
  const coding = chooseCoding(
    String(headers["accept-encoding"] ?? ""),
    mustBeIdentity ? ["identity"] : ["gzip", "identity"],
  );
  if (coding === undefined)
    throw new SandboxError(
      REASONS.encoding_not_acceptable,
      "error parsing Accept-Encoding: no acceptable encoding found, supported: [gzip]",
    );
  const precondition = checkPreconditions(headers, modifiedAtMs);
  if (precondition === "failed") throw new SandboxError(REASONS.file_changed, "the file has changed");
  const ranges =
    precondition === "proceed" && isRangeWanted(headers, modifiedAtMs)
      ? parseByteRanges(headers.range, sizeBytes)
      : "whole";
  if (ranges === "unsatisfiable") {
    response.setHeader("content-range", `bytes */${sizeBytes}`);
    throw new SandboxError(REASONS.range_not_satisfiable, "invalid range: failed to overlap");
  }

  // Read ahead for an unknown extension, and where the size may be wrong: files of /proc say 0.
  const namedType = typeByName(name);
  const start =
    namedType === undefined || sizeBytes === 0
      ? Buffer.concat(await Array.fromAsync(file.content({ length: SNIFF_BYTES })))
      : undefined;
  const type = namedType ?? typeByContent(start ?? new Uint8Array());
  const isSizeKnown = sizeBytes > 0 || start === undefined || start.length === 0;
  response.setHeader("vary", "Accept-Encoding");
  response.setHeader("content-disposition", inlineDisposition(name));
  const policy = pagePolicy(type);
  if (policy !== undefined) response.setHeader("content-security-policy", policy);
  if (modifiedAtMs > 0) response.setHeader("last-modified", new Date(modifiedAtMs).toUTCString());
  if (precondition === "not modified") {
    response.writeHead(304).end();
    return;
  }
  response.setHeader("accept-ranges", "bytes");
  const body = ranges === "whole" ? wholeBody(file, type, isSizeKnown) : partialBody(file, type, ranges);
  response.setHeader("content-type", body.contentType);
  if (body.contentRange !== undefined) response.setHeader("content-range", body.contentRange);
  if (coding === "gzip") response.setHeader("content-encoding", "gzip");
  else if (body.lengthBytes !== undefined) response.setHeader("content-length", body.lengthBytes);
  response.writeHead(body.status);
  if (request.method === "HEAD") {
    response.end();
    return;
  }
  try {
    if (body.lengthBytes !== undefined && body.lengthBytes <= AT_ONCE_BYTES && coding === "identity") {
      // A stream would cost more than such a file.
      response.end(await joined(body.content));
    } else if (coding === "gzip") {
      await pipeline(body.content, createGzip({ level: constants.Z_BEST_SPEED }), response);
    } else await pipeline(body.content, response);
  } catch (error) {
    // A client that leaves in the middle is no error.
    if (!request.signal.aborted) throw error;
  }
}

async function joined(content: AsyncIterable<Uint8Array>): Promise<Uint8Array> {
  const pieces: Uint8Array[] = [];
  for await (const piece of content) pieces.push(piece);
  const [only] = pieces;
  return only !== undefined && pieces.length === 1 ? only : Buffer.concat(pieces);
}
