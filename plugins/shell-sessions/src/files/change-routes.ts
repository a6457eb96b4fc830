import { posix } from "node:path";
import { SandboxError } from "@coppice/core";
import { z } from "zod";
import { ShellError } from "../shell/shell-error.js";
import { inputOf, type ShellRequest, type ShellRoute, success } from "../wire/route.js";
import { fileError, translated } from "./file-errors.js";
import { pathField, pathOf, sessionField } from "./session-path.js";

const writeBody = z.object({
  path: pathField,
  content: z.string(),
  encoding: z.enum(["utf-8", "utf8", "base64"]).nullish(),
  ...sessionField,
});
const mkdirBody = z.object({ path: pathField, recursive: z.boolean().nullish(), ...sessionField });
const deleteBody = z.object({ path: pathField, ...sessionField });
const renameBody = z.object({ oldPath: pathField, newPath: pathField, ...sessionField });
const moveBody = z.object({ sourcePath: pathField, destinationPath: pathField, ...sessionField });

export const changeRoutes: readonly ShellRoute[] = [
  {
    method: "POST",
    path: "/api/write",
    async handle(request) {
      const { path, content, encoding, ...session } = inputOf(writeBody, request.body);
      const absolute = pathOf(path, session, request);
      const bytes = encoding === "base64" ? decoded(content) : Buffer.from(content);
      await translated(absolute, request.sandbox.runtime.files.write(absolute, once(bytes)));
      return success({ path: absolute });
    },
  },
  {
    method: "POST",
    path: "/api/mkdir",
    async handle(request) {
      const { path, recursive, ...session } = inputOf(mkdirBody, request.body);
      const absolute = pathOf(path, session, request);
      await makeDirectory(request, absolute, recursive === true);
      return success({ path: absolute, recursive: recursive === true });
    },
  },
  {
    method: "POST",
    path: "/api/delete",
    async handle(request) {
      const { path, ...session } = inputOf(deleteBody, request.body);
      const absolute = pathOf(path, session, request);
      const { files } = request.sandbox.runtime;
      const { kind, symlinkTarget } = await translated(absolute, files.stat(absolute));
      if (kind === "directory" && symlinkTarget === undefined)
        throw new ShellError("IS_DIRECTORY", `Is a directory: ${absolute}`, { path: absolute });
      await translated(absolute, files.remove(absolute));
      return success({ path: absolute });
    },
  },
  {
    method: "POST",
    path: "/api/rename",
    handle(request) {
      const { oldPath, newPath, ...session } = inputOf(renameBody, request.body);
      return move(request, pathOf(oldPath, session, request), pathOf(newPath, session, request));
    },
  },
  {
    method: "POST",
    path: "/api/move",
    handle(request) {
      const { sourcePath, destinationPath, ...session } = inputOf(moveBody, request.body);
      return move(request, pathOf(sourcePath, session, request), pathOf(destinationPath, session, request));
    },
  },
];

async function move(
  { sandbox }: ShellRequest,
  path: string,
  newPath: string,
): Promise<ReturnType<typeof success>> {
  await translated(path, sandbox.runtime.files.move(path, newPath));
  return success({ path, newPath });
}

async function makeDirectory({ sandbox }: ShellRequest, path: string, isRecursive: boolean): Promise<void> {
  const { files } = sandbox.runtime;
  const failed = (why: string): ShellError =>
    new ShellError("FILESYSTEM_ERROR", `Failed to create directory '${path}': ${why}`, {
      path,
      exitCode: 1,
      stderr: `mkdir: cannot create directory '${path}': ${why}`,
    });
  try {
    if (!isRecursive) await files.stat(posix.dirname(path));
    await files.makeDir(path);
  } catch (error) {
    const reason = error instanceof SandboxError ? error.reason : undefined;
    if (reason === "path_exists" && isRecursive) return;
    if (reason === "path_exists") throw failed("File exists");
    if (reason === "path_not_found") throw failed("No such file or directory");
    if (reason === "path_is_file") throw failed("Not a directory");
    throw fileError(error, path);
  }
}

/** @throws ShellError VALIDATION_FAILED for what is not base64. */
function decoded(content: string): Buffer {
  const bytes = Buffer.from(content, "base64");
  const { length } = content;
  const padding = content.endsWith("==") ? 2 : content.endsWith("=") ? 1 : 0;
  // Node skips characters that do not belong there.
  const isWhole = length % 4 !== 1 && (padding === 0 || length % 4 === 0);
  if (!isWhole || bytes.length !== Math.floor(((length - padding) * 3) / 4))
    throw new ShellError("VALIDATION_FAILED", "Invalid request: content: it is not base64");
  return bytes;
}

async function* once(bytes: Buffer): AsyncGenerator<Uint8Array> {
  yield bytes;
}
