import {
  HttpError,
  type LiveSandbox,
  type PluginContext,
  SandboxError,
  requestOf,
  targetOf,
} from "@coppice/core";
import { sendDownload } from "./download.js";
import type { FileService, UserFiles } from "./file-service.js";
import { receiveUpload } from "./upload.js";

export interface FilesRoutesOptions {
  readonly service: FileService;
  readonly maxUploadBytes: number;
  readonly maxParts: number;
  readonly gzipLevel: number;
}

/** Serves `/files`, up and down. Whether the client may is decided before: by its token or its signature. */
export function registerFilesRoutes(
  router: ReturnType<PluginContext<unknown>["http"]>,
  options: FilesRoutesOptions,
): void {
  const { service, gzipLevel, maxUploadBytes, maxParts } = options;

  router.get("/files", async (context) => {
    const request = requestOf(context);
    const query = request.url.searchParams;
    const files = await filesAs(service, targetOf(context), query);
    // The body is piped here, with an end to it that koa does not give to one that breaks off.
    context.respond = false;
    const path = query.get("path") ?? "";
    await sendDownload(files, { request, response: context.res, path, gzipLevel });
  });

  router.post("/files", async (context) => {
    const query = requestOf(context).url.searchParams;
    const files = await filesAs(service, targetOf(context), query);
    const path = query.get("path") ?? undefined;
    try {
      context.body = await receiveUpload(files, { message: context.req, path, maxUploadBytes, maxParts });
    } catch (error) {
      if (!(error instanceof HttpError) || error.status !== 413) throw error;
      // Thrown on, it would close the connection under a client that still sends and so never reads the
      // answer. Here the rest of the body is skipped instead.
      context.status = error.status;
      context.body = error.body;
    }
  });
}

/** The user is `username` in the query; the Ruby client says `user`. */
async function filesAs(
  service: FileService,
  sandbox: LiveSandbox,
  query: URLSearchParams,
): Promise<UserFiles> {
  const username = query.get("username") || query.get("user") || undefined;
  try {
    return await service.as(sandbox, username);
  } catch (error) {
    if (!(error instanceof SandboxError) || error.code !== "not_found") throw error;
    throw new HttpError(401, `error looking up user '${username}': user: unknown user ${username}`);
  }
}
