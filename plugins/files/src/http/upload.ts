import type { IncomingMessage } from "node:http";
import { SandboxError } from "@coppice/core";
import type { UserFiles } from "../service/file-service.js";
import { parseMetadataHeaders } from "./metadata-headers.js";
import { multipartFiles } from "./multipart.js";
import { requestBody } from "./request-body.js";
import { toStorageError } from "./storage-error.js";
import { type WrittenFile, toWrittenFile } from "./written-file.js";

export interface UploadRequest {
  readonly message: IncomingMessage;
  /** The `path` of the query; undefined or empty when there is none. */
  readonly path: string | undefined;
  readonly maxUploadBytes: number;
  readonly maxParts: number;
}

/** POST /files: writes the request's files and answers a list of them. */
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
        throw new SandboxError("upload_invalid", "path query parameter is required for raw body upload");
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
        "upload_invalid",
        `unsupported content type: ${contentType}, expected multipart/form-data or application/octet-stream`,
      );
    }
  } catch (error) {
    throw toStorageError(error);
  }
  return written;
}
