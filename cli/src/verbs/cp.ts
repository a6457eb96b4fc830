import { mkdir, stat } from "node:fs/promises";
import { basename, dirname, join, posix, resolve } from "node:path";
import { PassThrough, type Readable, type Writable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { ignoring, printFailure, SandboxError } from "@coppice/core/client";
import { FileType, type Sandbox } from "e2b";
import { create, type ReadEntry, Unpack } from "tar";
import { attach } from "../connection/attach.js";
import type { ServerOptions } from "../connection/connection.js";
import { openSandbox } from "../connection/open-sandbox.js";

interface CopyOptions extends ServerOptions {
  readonly user?: string | undefined;
}

interface Place {
  /** Undefined for a path of this machine. */
  readonly id: string | undefined;
  readonly path: string;
}

/** Copies a file or a folder between this machine and a sandbox, by tar. Into a folder that exists it goes by its name. */
export async function cp(source: string, target: string, options: CopyOptions): Promise<number> {
  const [from, to] = [placeOf(source), placeOf(target)];
  const id = from.id ?? to.id;
  if (id === undefined || (from.id !== undefined && to.id !== undefined))
    throw new SandboxError("usage_invalid", "one of both is in a sandbox, as <id>:/path");
  const sandbox = await openSandbox(id, options);
  const copy = { sandbox, from: from.path, to: to.path, user: options.user };
  return from.id === undefined ? upload(copy) : download(copy);
}

/** `id:/path`, or a path of this machine: `./a:b` is one. */
function placeOf(text: string): Place {
  const [, id, path] = /^([a-z0-9]{3,64}):(.*)$/s.exec(text) ?? [];
  return id === undefined ? { id, path: text } : { id, path: path || "." };
}

interface Copy {
  readonly sandbox: Sandbox;
  readonly from: string;
  readonly to: string;
  readonly user: string | undefined;
}

async function upload({ sandbox, from, to, user }: Copy): Promise<number> {
  await stat(from).catch((error: NodeJS.ErrnoException) => {
    throw new SandboxError("usage_invalid", `${from}: ${error.code}`);
  });
  const path = resolve(from);
  const as = user === undefined ? {} : { user };
  const isFolder =
    to.endsWith("/") ||
    ((await sandbox.files.exists(to, as)) && (await sandbox.files.getInfo(to, as)).type === FileType.DIR);
  const [folder, name] = isFolder ? [to, basename(path)] : [posix.dirname(to), posix.basename(to)];
  await sandbox.files.makeDir(folder, as);
  const packed = create(
    {
      cwd: dirname(path),
      onWriteEntry: (entry) => {
        entry.path = renamed(entry.path, basename(path), name) ?? entry.path;
        // The name of this machine's account.
        entry.myuser = "";
      },
    },
    [`./${basename(path)}`],
  );
  return run({ sandbox, user, args: ["-x", "-o", "-f", "-", "-C", folder], input: packed });
}

async function download({ sandbox, from, to, user }: Copy): Promise<number> {
  const found = await stat(to).catch(ignoring("ENOENT"));
  const isFolder = found?.isDirectory() ?? to.endsWith("/");
  const name = posix.basename(posix.resolve("/", from));
  const [folder, as] = isFolder ? [resolve(to), name] : [dirname(resolve(to)), basename(resolve(to))];
  if (name === "") throw new SandboxError("usage_invalid", "name a file or a folder below /");
  await mkdir(folder, { recursive: true });
  const { unpack, skipped } = unpackerOf({ folder, name, as });
  const output = new PassThrough();
  const unpacked = pipeline(output, unpack);
  const args = ["-c", "-f", "-", "-C", posix.dirname(from), `./${name}`];
  const [code] = await Promise.all([
    run({ sandbox, user, args, output }).finally(() => output.end()),
    unpacked,
  ]);
  if (skipped() > 0) printFailure(`${skipped()} links and special files were left out`);
  return code;
}

/**
 * Unpacks what a sandbox calls an archive of `name`, as `as` in a folder: only files and folders, and only below that. A
 * link of this machine on the way is an error.
 */
export function unpackerOf({
  folder,
  name,
  as,
}: {
  readonly folder: string;
  readonly name: string;
  readonly as: string;
}) {
  let skipped = 0;
  const unpack = new Unpack({
    cwd: folder,
    preserveOwner: false,
    strict: true,
    filter: (path, given) => {
      const entry = given as ReadEntry;
      const place = renamed(path, name, as);
      if (place === undefined || !COPIED.has(entry.type)) {
        skipped += 1;
        return false;
      }
      entry.path = place;
      // Not set-user-ID: it would be this machine's user.
      if (entry.mode !== undefined) entry.mode &= 0o777;
      return true;
    },
  });
  return { unpack, skipped: () => skipped };
}

/** Links may lead out of the copy, and devices are none of it. */
const COPIED: ReadonlySet<string> = new Set(["File", "OldFile", "ContiguousFile", "Directory"]);

/** The path with another name in front; undefined when it is not below that name. */
function renamed(path: string, name: string, as: string): string | undefined {
  const [first, ...more] = path.replace(/^(\.\/)+/, "").split("/");
  return first === name && !more.includes("..") ? join(as, ...more) : undefined;
}

interface TarRun {
  readonly sandbox: Sandbox;
  readonly user: string | undefined;
  readonly args: readonly string[];
  readonly input?: Readable | AsyncIterable<Uint8Array>;
  readonly output?: Writable;
}

/** Runs tar in the sandbox; its complaints go to stderr. */
async function run({ sandbox, user, args, input, output = process.stdout }: TarRun): Promise<number> {
  const complaints = new PassThrough();
  let told = "";
  complaints.on("data", (chunk: Buffer) => (told = (told + chunk.toString()).slice(0, 4_000)));
  const code = await attach(
    sandbox,
    { cmd: "tar", args, user },
    { ...(input && { input }), stdout: output, stderr: complaints },
  );
  if (told !== "") printFailure(told.trimEnd());
  return code === 0 ? 0 : 1;
}
