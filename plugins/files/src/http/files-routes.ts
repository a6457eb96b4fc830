import type { IncomingMessage } from "node:http";
import {
  HttpError,
  type LiveSandbox,
  type Logger,
  parseInput,
  passBodyWhole,
  readJsonBody,
  requestOf,
  type Router,
  SandboxError,
  targetOf,
  toHttpError,
} from "@coppice/core";
import { z } from "zod";
import type { FileInfo } from "@coppice/core/backend";
import { DOWNLOAD_TOKEN_PATH, type DownloadLinks } from "./download-links.js";
import { sendDownload } from "./download.js";
import type { FilesConfig } from "../files-config.js";
import { explainedAs, translateErrors, type Upload, UserFiles } from "../service/file-service.js";
import { parseMetadataHeaders } from "../headers/content-headers.js";
import { arrivedBody, multipartFiles, requestBody } from "./request-body.js";

/** A written file in an answer: exactly these keys, because tests of clients compare deeply. */
interface WrittenFile {
  readonly path: string;
  readonly name: string;
  readonly type: "file";
  readonly metadata?: Readonly<Record<string, string>>;
}

function toWrittenFile({ path, name, metadata }: FileInfo): WrittenFile {
  const isDescribed = Object.keys(metadata).length > 0;
  return { path, name, type: "file", ...(isDescribed && { metadata }) };
}

/** Translates the error of a write for HTTP: a full disk is 507, not the 429 of other exhausted resources. */
function toStorageError(error: unknown): unknown {
  return error instanceof SandboxError && error.shortage !== undefined
    ? new HttpError(507, error.message, { reason: error })
    : error;
}

interface FilesRoutesOptions {
  /** Takes the routes that are not part of E2B. */
  readonly own: Router;
  /** Takes the route of download links, and admits those of `links` alone. */
  readonly linked: Router;
  readonly links: DownloadLinks;
  readonly config: FilesConfig;
}

const JSON_TYPE = "application/json; charset=utf-8";

const downloadUrlBody = z.object({ path: z.string().min(1), username: z.string().nullish() });

/** Serves uploads and downloads at `/files`, and their extensions. Clients are authorized before, by token, signature or link. */
export function mountFiles(router: Router, { own, linked, links, config }: FilesRoutesOptions): void {
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
    await sendDownload(files, { request, response: context.res, path });
  });

  router.post("/files", async (context) => {
    const query = requestOf(context).url.searchParams;
    const files = await filesAs(targetOf(context), userIn(query));
    const path = query.get("path") ?? "";
    try {
      const written = JSON.stringify(await receiveUpload(files, { message: context.req, path, config }));
      // Koa takes as long for an answer as a small file takes.
      context.respond = false;
      const lengthBytes = Buffer.byteLength(written);
      context.res.writeHead(200, { "content-type": JSON_TYPE, "content-length": lengthBytes }).end(written);
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
    context.body = await composeFiles(files, body, config.maxFilesPerUpload);
  });

  own.post("/files/batch", async (context) => {
    const { url, log } = requestOf(context);
    const metadata = parseMetadataHeaders(context.req.headers);
    const files = await filesAs(targetOf(context), userIn(url.searchParams));
    const entries = await readJsonBody(context.req, batchBody, bodyOptions);
    const { maxFilesPerUpload } = config;
    if (entries.length > maxFilesPerUpload)
      throw new SandboxError("request_invalid", `one batch can have ${maxFilesPerUpload} entries`);
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

  linked.get(`${DOWNLOAD_TOKEN_PATH}:token`, async (context) => {
    const request = requestOf(context);
    const path = request.url.searchParams.get("path") ?? "";
    const files = await UserFiles.of(targetOf(context), undefined, config);
    context.respond = false;
    await sendDownload(files, { request, response: context.res, path });
  });
}

/** The user is `username` in the query; the Ruby client says `user`. */
function userIn(query: URLSearchParams): string | undefined {
  return query.get("username") || query.get("user") || undefined;
}

/**
 * The body of POST /files/batch. Entries are validated one by one, so that an invalid one does not affect the others.
 */
const batchBody = z.array(z.unknown());

const batchEntry = z.object({
  path: z.string().min(1),
  content: z.string().optional(),
  content_b64: z
    .string()
    .regex(/^[A-Za-z0-9+/]*={0,2}$/, "not base64")
    .optional(),
});

/** Result of one entry of a batch; `status` is that of a separate request for the file. */
interface BatchResult {
  readonly path: string;
  readonly ok: boolean;
  readonly status: number;
  readonly bytes?: number;
  readonly error?: string;
  readonly reason?: string;
}

/** POST /files/batch: writes the entries; the answer has one result for each, in order. */
async function writeBatch(
  upload: Upload,
  entries: readonly unknown[],
  log: Logger,
): Promise<readonly BatchResult[]> {
  const results: BatchResult[] = [];
  for (const entry of entries) {
    try {
      results.push(await writeEntry(upload, entry));
    } catch (error) {
      const { status, message, reason } = toHttpError(toStorageError(error), log);
      results.push({ path: pathOf(entry), ok: false, status, error: message, reason });
    }
  }
  return results;
}

async function writeEntry(upload: Upload, entry: unknown): Promise<BatchResult> {
  const { path, content, content_b64: base64 } = parseInput(batchEntry, entry);
  if ((content === undefined) === (base64 === undefined))
    throw new SandboxError("request_invalid", "validation error: one of content and content_b64 is needed");
  const bytes = base64 === undefined ? Buffer.from(content ?? "") : Buffer.from(base64, "base64");
  const { path: written } = await upload.write(path, bytes);
  return { path: written, ok: true, status: 200, bytes: bytes.length };
}

function pathOf(entry: unknown): string {
  const { path } = (typeof entry === "object" && entry !== null ? entry : {}) as { path?: unknown };
  return typeof path === "string" ? path : "";
}

/** The body of POST /files/compose. Empty values get envd's own refusals. */
const composeBody = z.object({
  source_paths: z.array(z.string()).nullish(),
  destination: z.string().nullish(),
  username: z.string().nullish(),
});

/** POST /files/compose: joins files into one and removes them. */
async function composeFiles(
  files: UserFiles,
  { source_paths: sources, destination }: z.infer<typeof composeBody>,
  maxSources: number,
): Promise<WrittenFile> {
  if (!sources?.length) throw new SandboxError("request_invalid", "source_paths must not be empty");
  if (!destination) throw new SandboxError("request_invalid", "destination is required");
  if (sources.length > maxSources)
    throw new SandboxError("request_invalid", `one request can compose ${maxSources} files`);
  try {
    return toWrittenFile(await files.compose(sources, destination));
  } catch (error) {
    throw toStorageError(error);
  }
}

interface UploadRequest {
  readonly message: IncomingMessage;
  /** The `path` of the query; empty when there is none. */
  readonly path: string;
  readonly config: FilesConfig;
}

/** POST /files: writes the request's files and answers a list of them. */
async function receiveUpload(
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
      if (path === "")
        throw new SandboxError("upload_invalid", "path query parameter is required for raw body upload");
      passBodyWhole(message);
      const body = arrivedBody(message, maxUpload) ?? requestBody(message, maxUpload);
      written.push(toWrittenFile(await upload.write(path, body)));
    } else if (mediaType.startsWith("multipart/")) {
      const body = requestBody(message, maxUpload);
      const parts = multipartFiles(body, contentType, { field: "file", maxParts });
      for await (const { filename, content } of parts)
        written.push(toWrittenFile(await upload.write(path === "" ? filename : path, content)));
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
