import type { IncomingMessage } from "node:http";
import { SandboxError } from "@coppice/core";
import type { FilesConfig } from "../files-config.js";
import type { UserFiles } from "../service/file-service.js";
import { parseMetadataHeaders } from "../headers/metadata-headers.js";
import { multipartFiles } from "./multipart.js";
import { requestBody } from "./request-body.js";
import { toStorageError } from "./storage-error.js";
import { type WrittenFile, toWrittenFile } from "./written-file.js";

interface UploadRequest {
  readonly message: IncomingMessage;
  /** The `path` of the query; empty when there is none. */
  readonly path: string;
  readonly config: FilesConfig;
}

/** POST /files: writes the request's files and answers a list of them. */
export async function receiveUpload(
  files: UserFiles,
  { message, path, config }: UploadRequest,
): Promise<readonly WrittenFile[]> {
  const { maxUpload, maxFilesPerUpload: maxParts } = config;
  const contentType = message.headers["content-type"] ?? "";
  const mediaType = (contentType.split(";")[0] ?? "").trim().toLowerCase();
  const upload = files.startUpload(parseMetadataHeaders(message.headers));
  const written: WrittenFile[] = [];
  try {
    if (mediaType === "application/octet-stream") {
      if (path === "") {
        throw new SandboxError("upload_invalid", "path query parameter is required for raw body upload");
      }
      written.push(toWrittenFile(await upload.write(path, requestBody(message, maxUpload))));
    } else if (mediaType.startsWith("multipart/")) {
      const body = requestBody(message, maxUpload);
      const parts = multipartFiles(body, contentType, { field: "file", maxParts });
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
