import type { ServerResponse } from "node:http";
import { Readable } from "node:stream";
import {
  permit,
  readJsonBody,
  requestOf,
  requireScope,
  type Router,
  SandboxError,
  type Sandboxes,
  type Spool,
  tenantOf,
  type LiveSandbox,
  resolveSandboxPath,
} from "@coppice/core";
import { multipartFiles, requestBody } from "@coppice/plugin-files";
import { z } from "zod";
import type { CommandsV1Config } from "../commands-v1-config.js";
import type { NamedSandboxes } from "../sandboxes/named-sandboxes.js";
import { importArchive } from "./import-archive.js";
import { posix } from "node:path";
import { checkExit, outputOf, startTar } from "./tar-process.js";

interface ArchiveRoutesOptions {
  readonly named: NamedSandboxes;
  readonly sandboxes: Sandboxes;
  readonly spool: Spool;
  readonly config: CommandsV1Config;
}

const MAX_PATHS = 1_000;
const MAX_PARTS = 10;
const MAX_DEST_BYTES = 4_096;
/** The rest of a form around its archive. */
const MAX_FORM_BYTES = 64 * 1024;

const exportBody = z.object({
  src_dir: z.string().min(1).nullish(),
  paths: z.array(z.string()).min(1).max(MAX_PATHS).nullish(),
});

/** Routes that pass files as tar archives in both directions. */
export function mountArchives(
  router: Router,
  { named, sandboxes, spool, config }: ArchiveRoutesOptions,
): void {
  const path = `${config.basePath}/sandboxes/:id/files`;

  router.post(`${path}/export`, permit("read"), async (ctx) => {
    const sandbox = named.get(ctx, ctx.params["id"]);
    const body = await readJsonBody(ctx.req, exportBody, { limitBytes: config.maxBody, empty: {} });
    // With auto-resume it would run again.
    if (sandbox.record.state === "paused") requireScope(ctx, "write");
    releaseAtClose(ctx.res, await sandboxes.use(sandbox));
    const archive = await exportArchive(sandbox, {
      sourceDirectory: body.src_dir ?? named.describe(sandbox).workdir ?? "~",
      paths: body.paths ?? ["."],
      signal: requestOf(ctx).signal,
    });
    ctx.type = "application/x-tar";
    ctx.set("content-disposition", `attachment; filename="${sandbox.record.id}.tar"`);
    ctx.body = Readable.from(archive, { objectMode: false });
  });

  router.post(`${path}/import`, async (ctx) => {
    const sandbox = named.get(ctx, ctx.params["id"]);
    releaseAtClose(ctx.res, await sandboxes.use(sandbox));
    const contentType = ctx.req.headers["content-type"] ?? "";
    const body = requestBody(ctx.req, config.maxImport + MAX_FORM_BYTES);
    let destination: string | undefined;
    for await (const part of multipartFiles(body, contentType, { maxParts: MAX_PARTS })) {
      if (part.field === "dest") destination = await textOf(part.content);
      if (part.field !== "tarball") continue;
      if (!destination) throw invalid("the field `dest` has to come before the file `tarball`");
      ctx.body = await importArchive(sandbox, {
        destination,
        tarball: part.content,
        spool,
        tenant: tenantOf(ctx),
        maxBytes: config.maxImport,
        maxEntries: config.maxImportEntries,
        signal: requestOf(ctx).signal,
      });
      return;
    }
    throw invalid("expected the field `dest`, then the file `tarball`");
  });
}

/** The client may have left before. */
function releaseAtClose(response: ServerResponse, release: () => void): void {
  if (response.destroyed) release();
  else response.once("close", release);
}

async function textOf(content: AsyncIterable<Uint8Array>): Promise<string> {
  const chunks: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of content) {
    length += chunk.length;
    if (length > MAX_DEST_BYTES) throw invalid("`dest` is too long");
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString("utf8");
}

function invalid(text: string): SandboxError {
  return new SandboxError("upload_invalid", text);
}

interface ExportOptions {
  /** Directory that the paths start from, and that their names in the archive are relative to. */
  readonly sourceDirectory: string;
  readonly paths: readonly string[];
  /** Aborted when the client leaves. */
  readonly signal: AbortSignal;
}

/**
 * Files of a sandbox as an archive, read at the consumer's pace.
 * @throws SandboxError invalid_argument (a path that begins with `-` or has `..` in it), not_found for a missing one,
 * before the archive begins; failed_precondition when tar(1) fails, also within it.
 */
export async function exportArchive(
  sandbox: LiveSandbox,
  { sourceDirectory, paths, signal }: ExportOptions,
): Promise<AsyncGenerator<Uint8Array>> {
  const directory = resolveSandboxPath(sourceDirectory, await sandbox.runtime.user());
  for (const path of paths) {
    const isPlain =
      path !== "" && !path.startsWith("-") && !path.includes("\0") && !path.split("/").includes("..");
    if (!isPlain) throw new SandboxError("path_invalid", `path ${JSON.stringify(path)} cannot be exported`);
    await sandbox.runtime.files.stat(posix.resolve(directory, path));
  }
  const info = await sandbox.runtime.files.stat(directory);
  if (info.kind !== "directory") throw new SandboxError("path_is_file", `${directory} is not a directory`);
  // FreeBSD's tar takes `@name` for an archive.
  const named = paths.map((path) => (path.startsWith("@") ? `./${path}` : path));
  const process = await startTar(sandbox, {
    args: ["-c", "-f", "-", ...named],
    cwd: directory,
    input: "none",
    signal,
  });
  const told = { text: "" };
  const output = outputOf(process, told, signal);
  const first = await output.next();
  if (first.done === true) await checkExit(process, { told: told.text, allowed: [0] });
  return (async function* () {
    try {
      if (first.done !== true) yield first.value;
      yield* output;
      await checkExit(process, { told: told.text, allowed: [0, 1] });
    } finally {
      // The client may have left.
      await process.kill("SIGKILL", "group").catch(() => undefined);
    }
  })();
}
