import type { ServerResponse } from "node:http";
import { pipeline } from "node:stream/promises";
import { createGzip } from "node:zlib";
import { HttpError, SandboxError, type SurfaceRequest } from "@coppice/core";
import type { OpenFile } from "@coppice/core/backend";
import { chooseCoding } from "./accept-encoding.js";
import { type ByteRange, parseByteRange } from "./byte-range.js";
import { SNIFF_BYTES, inlineDisposition, typeByContent, typeByName } from "./content-headers.js";
import type { UserFiles } from "./file-service.js";
import { checkPreconditions, isConditional, isRangeWanted } from "./preconditions.js";

export interface DownloadRequest {
  readonly request: SurfaceRequest;
  readonly response: ServerResponse;
  readonly path: string;
  readonly gzipLevel: number;
}

/** GET and HEAD /files: answers the way Go's http.ServeContent does, without entity tags and multi-part ranges. */
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
  if (coding === undefined) {
    throw new HttpError(
      406,
      "error parsing Accept-Encoding: no acceptable encoding found, supported: [gzip]",
    );
  }
  const precondition = checkPreconditions(headers, modifiedAtMs);
  if (precondition === "failed") throw new HttpError(412, "the file has changed");
  const range =
    precondition === "proceed" && isRangeWanted(headers, modifiedAtMs)
      ? parseByteRange(headers.range, sizeBytes)
      : "whole";
  if (range === "unsatisfiable") {
    response.setHeader("content-range", `bytes */${sizeBytes}`);
    throw new HttpError(416, "invalid range: failed to overlap");
  }

  // Read ahead where the name says nothing, and where the size may lie: files of /proc say 0.
  const type = typeByName(name);
  const start =
    type === undefined || sizeBytes === 0 ? await collect(file.content({ length: SNIFF_BYTES })) : undefined;
  response.setHeader("vary", "Accept-Encoding");
  response.setHeader("content-disposition", inlineDisposition(name));
  if (modifiedAtMs > 0) response.setHeader("last-modified", new Date(modifiedAtMs).toUTCString());
  if (precondition === "not modified") {
    response.writeHead(304).end();
    return;
  }
  response.setHeader("accept-ranges", "bytes");
  response.setHeader("content-type", type ?? typeByContent(start ?? new Uint8Array()));
  const isSizeKnown = sizeBytes > 0 || start === undefined || start.length === 0;
  if (coding === "gzip") response.setHeader("content-encoding", "gzip");
  else if (isSizeKnown) response.setHeader("content-length", range === "whole" ? sizeBytes : range.length);
  if (range === "whole") response.writeHead(200);
  else {
    const last = range.start + range.length - 1;
    response.setHeader("content-range", `bytes ${range.start}-${last}/${sizeBytes}`);
    response.writeHead(206);
  }
  if (request.method === "HEAD") {
    response.end();
    return;
  }
  const content = isSizeKnown ? exactly(file, range) : file.content();
  try {
    if (coding === "gzip") {
      await pipeline(content, createGzip({ level: download.gzipLevel }), response);
    } else await pipeline(content, response);
  } catch (error) {
    // A client that leaves in the middle is nothing to report.
    if (!request.signal.aborted) throw error;
  }
}

/** As many bytes as were promised, also when the file grows meanwhile; one that shrinks breaks the answer off. */
async function* exactly(file: OpenFile, range: ByteRange | "whole"): AsyncGenerator<Uint8Array> {
  const { start, length } = range === "whole" ? { start: 0, length: file.info.sizeBytes } : range;
  let leftBytes = length;
  if (leftBytes === 0) return;
  for await (const chunk of file.content({ offset: start, length })) {
    leftBytes -= chunk.length;
    yield chunk;
  }
  if (leftBytes > 0) throw new SandboxError("data_loss", "the file shrank while it was read");
}

async function collect(content: AsyncIterable<Uint8Array>): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of content) chunks.push(chunk);
  return Buffer.concat(chunks);
}
