import { posix } from "node:path";
import { SandboxError } from "@coppice/core";
import type { FileInfo } from "@coppice/core/backend";
import { z } from "zod";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import { ShellError } from "../shell/shell-error.js";
import { inputOf, type ShellRequest, type ShellRoute, success } from "../wire/route.js";
import { translated } from "./file-errors.js";
import { pathField, pathOf, sessionField } from "./session-path.js";

const listBody = z.object({
  path: pathField,
  options: z.object({ recursive: z.boolean().nullish(), includeHidden: z.boolean().nullish() }).nullish(),
  ...sessionField,
});
const existsBody = z.object({ path: pathField, ...sessionField });

/** More levels than a path has names. */
const ALL_LEVELS = 4096;
/** What stands for a missing path: also one below a file, or in a circle of links. */
const ABSENT: ReadonlySet<string> = new Set(["path_not_found", "path_is_file", "symlink_loop"]);

export function listRoutes({ maxListEntries }: ShellSessionsConfig): readonly ShellRoute[] {
  return [
    {
      method: "POST",
      path: "/api/list-files",
      async handle(request) {
        const { path, options, ...session } = inputOf(listBody, request.body);
        const root = pathOf(path, session, request);
        const wanted = {
          depth: options?.recursive === true ? ALL_LEVELS : 1,
          includesHidden: options?.includeHidden === true,
          maxEntries: maxListEntries,
        };
        const files = await translated(root, listing(request, root, wanted));
        return success({ path: root, files, count: files.length });
      },
    },
    {
      method: "POST",
      path: "/api/exists",
      async handle(request) {
        const { path, ...session } = inputOf(existsBody, request.body);
        const absolute = pathOf(path, session, request);
        const info = await translated(absolute, statIfPresent(request, absolute));
        return success({ path: absolute, exists: info !== undefined && !isDangling(info) });
      },
    },
  ];
}

interface Listing {
  readonly depth: number;
  readonly includesHidden: boolean;
  readonly maxEntries: number;
}

async function listing(
  { sandbox, signal }: ShellRequest,
  root: string,
  { depth, includesHidden, maxEntries }: Listing,
): Promise<readonly Readonly<Record<string, unknown>>[]> {
  const listed: Readonly<Record<string, unknown>>[] = [];
  for await (const info of sandbox.runtime.files.list(root, depth)) {
    signal.throwIfAborted();
    const file = listedFile(root, info);
    if (!includesHidden && /(^|\/)\./.test(String(file["relativePath"]))) continue;
    if (listed.length === maxEntries) {
      const message = `More than ${maxEntries} entries below ${root}`;
      throw new ShellError("VALIDATION_FAILED", message, { path: root, maxEntries });
    }
    listed.push(file);
  }
  return listed;
}

async function statIfPresent({ sandbox }: ShellRequest, path: string): Promise<FileInfo | undefined> {
  return await sandbox.runtime.files.stat(path).catch((error: unknown) => {
    if (error instanceof SandboxError && ABSENT.has(error.reason)) return undefined;
    throw error;
  });
}

/** A link without a target has no mode. */
function isDangling({ symlinkTarget, kind, mode }: FileInfo): boolean {
  return symlinkTarget !== undefined && kind === "unknown" && mode === 0;
}

const LETTERS = "rwxrwxrwx";

/** An entry of a listing as clients read it. */
function listedFile(root: string, info: FileInfo): Readonly<Record<string, unknown>> {
  const mode = LETTERS.replace(/./g, (letter, index: number) =>
    (info.mode >> (8 - index)) & 1 ? letter : "-",
  );
  return {
    name: info.name,
    absolutePath: info.path,
    relativePath: posix.relative(root, info.path),
    type: typeOf(info),
    size: info.sizeBytes,
    modifiedAt: new Date(info.modifiedAtMs).toISOString(),
    mode,
    permissions: { readable: mode[0] === "r", writable: mode[1] === "w", executable: mode[2] === "x" },
  };
}

function typeOf({ kind, symlinkTarget }: FileInfo): string {
  if (symlinkTarget !== undefined) return "symlink";
  return kind === "unknown" ? "other" : kind;
}
