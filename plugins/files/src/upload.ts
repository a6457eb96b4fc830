import type { IncomingMessage } from "node:http";
import { HttpError, SandboxError } from "@coppice/core";
import type { FileInfo } from "@coppice/core/backend";
import type { UserFiles } from "./file-service.js";
import { parseMetadataHeaders } from "./metadata-headers.js";
import { multipartFiles } from "./multipart.js";
import { requestBody } from "./request-body.js";

export interface UploadRequest {
  readonly message: IncomingMessage;
  /** The `path` of the query, undefined or empty when there is none. */
  readonly path: string | undefined;
  readonly maxUploadBytes: number;
  readonly maxParts: number;
}

/** A file as an upload's answer lists it: exactly these keys, tests of clients compare deeply. */
export interface WrittenFile {
  readonly path: string;
  readonly name: string;
  readonly type: "file";
  readonly metadata?: Readonly<Record<string, string>>;
}

/** POST /files: writes what the request carries and answers what was written. */
export async function receiveUpload(
  files: UserFiles,
  request: UploadRequest,
): Promise<readonly WrittenFile[]> {
  const { message, path = "" } = request;
  const contentType = message.headers["content-type"] ?? "";
  const mediaType = (contentType.split(";")[0] ?? "").trim().toLowerCase();
  const upload = files.startUpload(parseMetadataHeaders(message.headers));
  const written: WrittenFile[] = [];
  try {
    if (mediaType === "application/octet-stream") {
      if (path === "") {
        throw new SandboxError("invalid_argument", "path query parameter is required for raw body upload");
      }
      written.push(toWrittenFile(await upload.write(path, requestBody(message, request.maxUploadBytes))));
    } else if (mediaType.startsWith("multipart/")) {
      const body = requestBody(message, request.maxUploadBytes);
      const parts = multipartFiles(body, contentType, { field: "file", maxParts: request.maxParts });
      for await (const { filename, content } of parts) {
        written.push(toWrittenFile(await upload.write(path === "" ? filename : path, content)));
      }
    } else {
      throw new SandboxError(
        "invalid_argument",
        `unsupported content type: ${contentType}, expected multipart/form-data or application/octet-stream`,
      );
    }
  } catch (error) {
    throw error instanceof SandboxError && error.code === "resource_exhausted"
      ? new HttpError(507, error.message)
      : error;
  }
  return written;
}

function toWrittenFile({ path, name, metadata }: FileInfo): WrittenFile {
  const isDescribed = Object.keys(metadata).length > 0;
  return { path, name, type: "file", ...(isDescribed && { metadata }) };
}
