import { createHash } from "node:crypto";
import { constants, createWriteStream } from "node:fs";
import { mkdtemp, open, readdir, rename, rm, stat, writeFile } from "node:fs/promises";
import { dirname, join, relative, resolve, sep } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { pipeline } from "node:stream/promises";
import { pack, type Headers, type Pack } from "tar-stream";
import { z } from "zod";
import { configure, type Configuration, foldersOfPlugins } from "../boot/configure.js";
import { readConfig } from "../config/read.js";
import { messageOf } from "../kernel/errors.js";
import { CORE } from "../kernel/one-core.js";
import { LAST_BACKUP } from "../observe/server-gauges.js";
import { LOCK_NAME } from "../sandbox/ledger/sqlite-ledger.js";
import { printFailure, printLine } from "./terminal.js";

export const MANIFEST = "manifest.json";
/** Folder of the archive that has the files of the data directory. */
export const DATA = "data/";
export const FORMAT = 1;

/** Last entry of a backup: an archive without it is not whole. */
export const manifest = z.object({
  format: z.int(),
  version: z.string(),
  madeAt: z.string(),
  /** Owner of the data directory. */
  owner: z.object({ uid: z.int(), gid: z.int() }),
  files: z.array(z.object({ path: z.string(), sha256: z.string(), schema: z.int().optional() }).readonly()),
});
export type Manifest = z.infer<typeof manifest>;

const BUSY_TIMEOUT_MS = 5_000;
/** SQLite's own files beside a store, the lock of a running server, and the time of the last backup. */
const TRANSIENT = new RegExp(
  `\\.sqlite-(wal|shm|journal)$|^${LOCK_NAME.replace(".", "\\.")}(-journal)?$|^${LAST_BACKUP}(\\.new)?$`,
);

/** Writes the data directory of a configuration, whose server may run, to an archive that replaces the old one at the end. */
export async function backup(file: string, archive: string): Promise<number> {
  const configuration = await configure(readConfig(file, process.env));
  const dataDir = resolve(configuration.server.dataDir);
  const skipped = foldersOfSandboxes(configuration);
  const target = resolve(archive);
  if (target.startsWith(dataDir + sep)) {
    printFailure(`${archive} is in the data directory that it would be of`);
    return 1;
  }
  const unfinished = `${target}.new`;
  let scratch: string | undefined;
  try {
    scratch = await mkdtemp(join(dirname(target), ".coppice-backup-"));
    await rm(unfinished, { force: true });
    const leftOut = await writeArchive({ dataDir, skipped, unfinished, scratch });
    await rename(unfinished, target);
    await flushFolder(dirname(target));
    await noteTime(dataDir).catch((error: unknown) =>
      process.stderr.write(`coppice: metrics will not tell of this backup: ${messageOf(error)}\n`),
    );
    for (const line of leftOut) process.stderr.write(`coppice: left out ${JSON.stringify(line)}\n`);
    printLine(`${archive} has the data of ${dataDir}`);
    return 0;
  } catch (error) {
    await rm(unfinished, { force: true });
    printFailure(`there is no new backup: ${messageOf(error)}`);
    return 1;
  } finally {
    if (scratch !== undefined) await rm(scratch, { recursive: true, force: true });
  }
}

/** Never through a link: root may be asked to keep the data of a server that somebody else has taken over. */
async function noteTime(dataDir: string): Promise<void> {
  const unfinished = join(dataDir, `${LAST_BACKUP}.new`);
  await rm(unfinished, { force: true });
  await writeFile(unfinished, "", { flag: "wx", mode: 0o600 });
  await rename(unfinished, join(dataDir, LAST_BACKUP));
}

/**
 * Folders below the data directory that have files of sandboxes, which no server may open as its own: a name, a link or a
 * journal of a database there is a guest's. Each is the setting `directory` of a backend.
 */
export function foldersOfSandboxes(configuration: Configuration): ReadonlySet<string> {
  const dataDir = resolve(configuration.server.dataDir);
  const folders = [...foldersOfPlugins(configuration).values()];
  return new Set(folders.filter((folder) => folder.startsWith(dataDir + sep)));
}

interface Places {
  readonly dataDir: string;
  readonly skipped: ReadonlySet<string>;
  readonly unfinished: string;
  readonly scratch: string;
}

/** @returns what is neither a file nor a folder. */
async function writeArchive({ dataDir, skipped, unfinished, scratch }: Places): Promise<readonly string[]> {
  const { uid, gid } = await stat(dataDir);
  const tar = pack();
  const output = createWriteStream(unfinished, { flags: "wx", mode: 0o600, flush: true });
  const written = pipeline(tar, output);
  const files: Manifest["files"][number][] = [];
  const leftOut: string[] = [];
  const copy = join(scratch, "store.sqlite");
  const walk = async (folder: string): Promise<void> => {
    for (const item of await readdir(folder, { withFileTypes: true })) {
      const path = join(folder, item.name);
      const name = relative(dataDir, path);
      if (TRANSIENT.test(item.name) || skipped.has(path)) continue;
      if (item.isDirectory()) {
        const found = await unlessGone(stat(path));
        if (found === undefined) continue;
        await addFolder(tar, { name: DATA + name, mode: found.mode & 0o777, uid: found.uid, gid: found.gid });
        await unlessGone(walk(path));
      } else if (!item.isFile()) leftOut.push(name);
      else if (item.name.endsWith(".sqlite")) {
        const schema = copyStore(path, copy);
        const sha256 = await addFile(tar, { path: copy, name: DATA + name, like: path });
        await rm(copy);
        if (sha256 !== undefined) files.push({ path: name, sha256, schema });
      } else {
        const sha256 = await unlessGone(addFile(tar, { path, name: DATA + name }));
        if (sha256 !== undefined) files.push({ path: name, sha256 });
      }
    }
  };
  const fill = async (): Promise<void> => {
    try {
      await walk(dataDir);
      const facts: Manifest = {
        format: FORMAT,
        version: CORE.version,
        madeAt: new Date().toISOString(),
        owner: { uid, gid },
        files,
      };
      tar.entry({ name: MANIFEST, mode: 0o600 }, JSON.stringify(facts, undefined, 2));
      tar.finalize();
    } catch (error) {
      tar.destroy(error as Error);
    }
  };
  // Not for `fill` as well: an entry waits for ever when a full disk has ended the output.
  void fill();
  await written;
  return leftOut;
}

/** Copies a store as it is between two transactions. @returns the version of its schema. */
function copyStore(path: string, copy: string): number {
  const database = new DatabaseSync(path, { timeout: BUSY_TIMEOUT_MS });
  try {
    database.prepare("VACUUM INTO ?").run(copy);
    return Number(database.prepare("PRAGMA user_version").get()?.["user_version"]);
  } catch (error) {
    throw new Error(`cannot read ${path}: ${messageOf(error)}`, { cause: error });
  } finally {
    database.close();
  }
}

async function addFolder(tar: Pack, header: Headers): Promise<void> {
  const { promise, resolve: done, reject } = Promise.withResolvers<void>();
  tar.entry({ ...header, type: "directory" }, (error) => (error ? reject(error) : done()));
  await promise;
}

interface AddedFile {
  readonly path: string;
  readonly name: string;
  /** A file whose owner and mode it has; itself when absent. */
  readonly like?: string;
}

/** @returns the digest of what is in the archive; undefined for what is not a file any more. */
async function addFile(tar: Pack, { path, name, like }: AddedFile): Promise<string | undefined> {
  const handle = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    const own = await handle.stat();
    if (!own.isFile()) return undefined;
    const { mode, uid, gid } = like === undefined ? own : await stat(like);
    const digest = createHash("sha256");
    const entry = tar.entry({ name, size: own.size, mode: mode & 0o777, uid, gid, mtime: own.mtime });
    await pipeline(exactly(handle.createReadStream({ autoClose: false }), own.size, digest), entry);
    return digest.digest("hex");
  } finally {
    await handle.close();
  }
}

/** A log may grow meanwhile, or be cut: it has the length of its header, as tar(1) does it. */
async function* exactly(
  chunks: AsyncIterable<Buffer>,
  size: number,
  digest: { update(bytes: Uint8Array): unknown },
): AsyncGenerator<Buffer> {
  let left = size;
  for await (const chunk of chunks) {
    const part = chunk.subarray(0, left);
    left -= part.length;
    digest.update(part);
    if (part.length > 0) yield part;
    if (left === 0) return;
  }
  while (left > 0) {
    const zeros = Buffer.alloc(Math.min(left, 65_536));
    left -= zeros.length;
    digest.update(zeros);
    yield zeros;
  }
}

async function unlessGone<T>(promise: Promise<T>): Promise<T | undefined> {
  try {
    return await promise;
  } catch (error) {
    if (["ENOENT", "ELOOP"].includes((error as NodeJS.ErrnoException).code ?? "")) return undefined;
    throw error;
  }
}

async function flushFolder(folder: string): Promise<void> {
  await using handle = await open(folder, "r");
  await handle.sync();
}
