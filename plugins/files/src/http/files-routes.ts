import {
  type LiveSandbox,
  type Router,
  SandboxError,
  readJsonBody,
  requestOf,
  targetOf,
  toHttpError,
} from "@coppice/core";
import { z } from "zod";
import { batchBody, writeBatch } from "./batch.js";
import { composeBody, composeFiles } from "./compose.js";
import { DOWNLOAD_TOKEN_PATH, type DownloadLinks } from "./download-links.js";
import { sendDownload } from "./download.js";
import type { FilesConfig } from "../files-config.js";
import { explainedAs, translateErrors, UserFiles } from "../service/file-service.js";
import { parseMetadataHeaders } from "../headers/metadata-headers.js";
import { receiveUpload } from "./upload.js";

interface FilesRoutesOptions {
  /** Takes the routes that are not part of E2B. */
  readonly own: Router;
  readonly links: DownloadLinks;
  readonly config: FilesConfig;
}

const downloadUrlBody = z.object({ path: z.string().min(1), username: z.string().nullish() });

/**
 * Serves uploads and downloads at `/files`, and their extensions. Clients are authorized before, by token or signature.
 * A download link is its own proof, which is checked here.
 */
export function mountFiles(router: Router, { own, links, config }: FilesRoutesOptions): void {
  const { gzipLevel, maxFilesPerUpload } = config;
  const bodyOptions = { limitBytes: config.maxBatch };
  const filesAs = (sandbox: LiveSandbox, username: string | undefined): Promise<UserFiles> =>
    translateErrors(UserFiles.of(sandbox, username, config), {
      not_found: explainedAs(
        "user_unknown",
        `error looking up user '${username}': user: unknown user ${username}`,
      ),
    });

  router.get("/files", async (context) => {
    const request = requestOf(context);
    const query = request.url.searchParams;
    const files = await filesAs(targetOf(context), userIn(query));
    // Piped by hand: koa leaves the client without an end when the body breaks off.
    context.respond = false;
    const path = query.get("path") ?? "";
    await sendDownload(files, { request, response: context.res, path, gzipLevel });
  });

  router.post("/files", async (context) => {
    const query = requestOf(context).url.searchParams;
    const files = await filesAs(targetOf(context), userIn(query));
    const path = query.get("path") ?? "";
    try {
      context.body = await receiveUpload(files, { message: context.req, path, config });
    } catch (error) {
      if (!(error instanceof SandboxError) || error.reason !== "body_too_large") throw error;
      // Rethrown, it would close the connection of a client that still sends, which then never reads the answer. The
      // rest of the body is skipped instead.
      ({ status: context.status, body: context.body } = toHttpError(error, requestOf(context).log));
    }
  });

  router.post("/files/compose", async (context) => {
    const body = await readJsonBody(context.req, composeBody, bodyOptions);
    const files = await filesAs(targetOf(context), body.username || undefined);
    context.body = await composeFiles(files, body, maxFilesPerUpload);
  });

  own.post("/files/batch", async (context) => {
    const { url, log } = requestOf(context);
    const metadata = parseMetadataHeaders(context.req.headers);
    const files = await filesAs(targetOf(context), userIn(url.searchParams));
    const entries = await readJsonBody(context.req, batchBody, bodyOptions);
    if (entries.length > maxFilesPerUpload) {
      throw new SandboxError("request_invalid", `one batch can have ${maxFilesPerUpload} entries`);
    }
    context.body = await writeBatch(files.startUpload(metadata), entries, log);
  });

  own.post("/files/download-url", async (context) => {
    const body = await readJsonBody(context.req, downloadUrlBody, bodyOptions);
    const sandbox = targetOf(context);
    const files = await filesAs(sandbox, body.username || undefined);
    const path = files.resolve(body.path);
    const { token, expiresAt } = links.make(sandbox.record.id, path);
    const query = new URLSearchParams({ path }).toString();
    context.body = {
      url: `${requestOf(context).protocol}://${context.host}${DOWNLOAD_TOKEN_PATH}${token}?${query}`,
      expires_at: expiresAt,
      sandboxID: sandbox.record.id,
    };
  });

  own.get(`${DOWNLOAD_TOKEN_PATH}:token`, async (context) => {
    const request = requestOf(context);
    const sandbox = targetOf(context);
    const path = request.url.searchParams.get("path") ?? "";
    // The client may have named the sandbox itself: then the token has not been checked yet.
    if (links.check(context.params["token"] ?? "", path) !== sandbox.record.id) {
      throw new SandboxError("download_link_invalid", "invalid download link");
    }
    const files = await UserFiles.of(sandbox, undefined, config);
    context.respond = false;
    await sendDownload(files, { request, response: context.res, path, gzipLevel });
  });
}

/** The user is `username` in the query; the Ruby client says `user`. */
function userIn(query: URLSearchParams): string | undefined {
  return query.get("username") || query.get("user") || undefined;
}
