import { createReadStream } from "node:fs";
import { open } from "node:fs/promises";
import { posix } from "node:path";
import { createGunzip } from "node:zlib";
import { randomUUID } from "node:crypto";
import { messageOf } from "@coppice/core";
import { MOST_WRITES, type Sandbox } from "@coppice/core/backend";
import { BuildFailure, type LogLevel } from "../model/build-record.js";
import type { BuildStep } from "../model/build-request.js";
import { failureText, runScript } from "../guest/guest-run.js";
import type { BuildContext } from "../model/layer.js";
import type { Workspace } from "../guest/workspace.js";

/** Surroundings of one step. */
export interface StepRun {
  readonly workspace: Workspace;
  /** As the steps before it left it. */
  readonly context: BuildContext;
  readonly templateId: string;
  /** Variables of the proxies for RUN, which ENV goes before; nothing keeps them. */
  readonly proxies: Readonly<Record<string, string>>;
  readonly signal: AbortSignal;
  /** Takes a line of the log. */
  readonly print: (level: LogLevel, line: string) => void;
  /** `builder 1/2`: begins the lines of output. */
  readonly prefix: string;
  /** As `BuildSurroundings.findUpload`. */
  readonly findUpload: (filesHash: string) => string | undefined;
  /** Most bytes of the files of a COPY step. */
  readonly maxCopyBytes: number;
}

export interface StepResult {
  readonly context: BuildContext;
  /** False when no file has changed. */
  readonly isChanged: boolean;
}

/** Parsed arguments of `COPY source destination [owner] [mode]`. */
interface CopyArguments {
  /** Of the archive: absolute, without glob patterns. */
  readonly source: string;
  /** Absolute; a slash at its end means a directory. */
  readonly destination: string;
  /** `name:group`; undefined = the user of the context. */
  readonly owner: string | undefined;
  /** Octal; empty = as in the archive. */
  readonly mode: string;
}

const OWNER = /^[\w.][\w.-]*(:[\w.][\w.-]*)?$/;
const MODE = /^0?[0-7]{3,4}$/;
const READ_BYTES = 256 * 1024;

/** `COPY source destination [owner] [mode]` with files that were uploaded, and `ADD`, which does the same. */
export async function copyStep(step: BuildStep, run: StepRun): Promise<StepResult> {
  const { workspace, context, signal } = run;
  const type = step.type.toUpperCase();
  const sandbox = await workspace.sandbox();
  const user = await sandbox.user(context.user);
  const { source, destination, owner, mode } = parseCopy(step, context.workdir ?? user.home);
  if (step.filesHash === undefined || step.filesHash === "") refuse(`${type} requires files hash to be set`);
  const upload = run.findUpload(step.filesHash);
  if (upload === undefined) refuse(`${type}: the files of '${step.args[0]}' were not uploaded`);
  // Beside everything else, so that the files are moved within one file system.
  const stage = `/.build-${randomUUID()}`;
  await unpack(sandbox, upload, stage, run);
  const args = [stage, `.${source}`, destination, owner ?? `${user.uid}:${user.gid}`, mode];
  const result = await runScript(sandbox, MOVE_FILES, { args, signal });
  if (result.exit.code === SOURCE_MISSING) refuse(`source path does not exist: ${step.args[0]}`);
  if (result.exit.code !== 0) refuse(`failed to move files in sandbox: ${failureText(result)}`);
  return { context, isChanged: true };
}

/** @param workdir where relative destinations begin. @throws BuildFailure */
export function parseCopy({ type, args }: Pick<BuildStep, "type" | "args">, workdir: string): CopyArguments {
  const [from, to, owner = "", mode = ""] = args;
  if (from === undefined || to === undefined)
    refuse(`${type.toUpperCase()} requires a local path and a container path argument`);
  if ([from, to].some((path) => path.includes("\0"))) refuse("a path cannot contain a NUL byte");
  if (owner !== "" && !OWNER.test(owner)) refuse(`invalid owner '${owner}'`);
  if (mode !== "" && !MODE.test(mode)) refuse(`invalid mode '${mode}'`);
  const destination = posix.resolve(workdir, to);
  const isDirectory = to.endsWith("/") && destination !== "/";
  return {
    source: posix.join("/", beforePatterns(from)),
    destination: isDirectory ? `${destination}/` : destination,
    owner: owner === "" ? undefined : owner.includes(":") ? owner : `${owner}:${owner}`,
    mode,
  };
}

/** The directories before the first one with a pattern; the whole path without patterns. */
function beforePatterns(path: string): string {
  const at = path.search(/[*?[{\\]/);
  return at === -1 ? path : path.slice(0, path.lastIndexOf("/", at) + 1);
}

/** Unpacks an upload inside a sandbox: its names and links are resolved there, and by nobody else. */
async function unpack(
  sandbox: Sandbox,
  upload: string,
  stage: string,
  { maxCopyBytes: maxBytes, signal }: Pick<StepRun, "maxCopyBytes" | "signal">,
): Promise<void> {
  const broken = (reason: string, cause?: unknown): BuildFailure =>
    new BuildFailure(`failed to extract files: ${reason}`, undefined, { cause });
  async function* archive(): AsyncGenerator<Uint8Array> {
    let bytes = 0;
    try {
      for await (const chunk of (await isGzip(upload)) ? unzipped(upload) : blocksOf(upload)) {
        bytes += chunk.byteLength;
        if (bytes > maxBytes) throw broken(`they have more than ${maxBytes} bytes`);
        yield chunk;
      }
    } catch (error) {
      throw error instanceof BuildFailure ? error : broken(messageOf(error), error);
    }
  }
  const result = await runScript(sandbox, UNPACK_FILES, { args: [stage], signal, input: archive() });
  if (result.exit.code !== 0) throw broken(failureText(result));
}

async function* unzipped(path: string): AsyncGenerator<Uint8Array> {
  const file = createReadStream(path, { highWaterMark: READ_BYTES });
  const unpacked = file.pipe(createGunzip({ chunkSize: READ_BYTES }));
  file.on("error", (error) => unpacked.destroy(error));
  try {
    yield* unpacked as AsyncIterable<Uint8Array>;
  } finally {
    file.destroy();
    unpacked.destroy();
  }
}

/** Reads a file into the same few blocks: a stream's new memory for each takes several times as long as the reading. */
async function* blocksOf(path: string): AsyncGenerator<Uint8Array> {
  await using file = await open(path);
  const blocks = Array.from({ length: MOST_WRITES + 1 }, () => Buffer.allocUnsafeSlow(READ_BYTES));
  for (;;) {
    for (const block of blocks) {
      const { bytesRead } = await file.read(block, 0, block.byteLength);
      if (bytesRead === 0) return;
      yield block.subarray(0, bytesRead);
    }
  }
}

async function isGzip(path: string): Promise<boolean> {
  await using file = await open(path);
  const { buffer, bytesRead } = await file.read(Buffer.alloc(2), 0, 2, 0);
  return bytesRead === 2 && buffer.readUInt16BE() === 0x1f8b;
}

function refuse(message: string): never {
  throw new BuildFailure(message, undefined);
}

/** Exit code of `MOVE_FILES` for a source that is not in the archive. */
const SOURCE_MISSING = 11;

/** Unpacks the archive on stdin. Parameter: a new directory for it. */
const UNPACK_FILES = `
mkdir -m 700 -- "$1" && cd -- "$1" && exec tar -x -p -o -f -
`;

/**
 * Moves unpacked files to their place, as COPY of Docker does: the contents of a directory are merged into another, a
 * link to a directory is followed there, and one to a file is replaced.
 *
 * Renaming takes no longer for more files: only directories that are on both sides are gone through.
 *
 * Parameters: the directory of the archive, the source in it, the destination, `owner:group`, a mode or nothing.
 */
const MOVE_FILES = `
shopt -s dotglob nullglob
stage=$1 entry=$2 to=$3 owner=$4 mode=$5
merge() {
  local name at names=()
  for name in "$1"/*; do
    if [ -d "$name" ] && [ ! -L "$name" ] && [ -d "$2/\${name##*/}" ]; then
      merge "$name" "$2/\${name##*/}" || return
    else
      names+=("$name")
    fi
  done
  for ((at = 0; at < \${#names[@]}; at += 200)); do
    mv -f -- "\${names[@]:at:200}" "$2/" || return
  done
}
cd -- "$stage" || exit
[ -e "$entry" ] || [ -L "$entry" ] || exit ${SOURCE_MISSING}
chown -R -h -- "$owner" "$entry" || exit
[ -z "$mode" ] || [ -L "$entry" ] || chmod -R -- "$mode" "$entry" || exit
if [ -d "$entry" ] && [ ! -L "$entry" ]; then
  if [ ! -d "$to" ]; then
    mkdir -p -- "$to" && chown -- "$owner" "$to" || exit
  fi
  merge "$entry" "\${to%/}" || exit
else
  case $to in
  */) mkdir -p -- "$to" || exit ;;
  /*/*) mkdir -p -- "\${to%/*}" || exit ;;
  esac
  mv -f -- "$entry" "$to" || exit
fi
cd / && rm -rf -- "$stage"
`;
