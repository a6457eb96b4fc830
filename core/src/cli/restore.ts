import { createHash } from "node:crypto";
import { createReadStream, createWriteStream, existsSync } from "node:fs";
import { chmod, chown, mkdir, mkdtemp, readdir, rename, rm, stat } from "node:fs/promises";
import { dirname, join, relative, resolve } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { pipeline } from "node:stream/promises";
import { extract, type Entry } from "tar-stream";
import { configure } from "../boot/configure.js";
import { readConfig } from "../config/read.js";
import { messageOf } from "../kernel/errors.js";
import { CORE } from "../kernel/one-core.js";
import { LOCK_NAME, reasonLedgerUnusable, takeLock } from "../sandbox/ledger/sqlite-ledger.js";
import { DATA, foldersOfSandboxes, FORMAT, MANIFEST, manifest, type Manifest } from "./backup.js";
import { printFailure, printLine } from "./terminal.js";

const MANIFEST_BYTES = 64 * 1024 * 1024;

/**
 * Puts the files of a backup in the place of a data directory. What was there stays beside it, and folders of sandboxes stay
 * where they are. Nothing changes before the whole archive is unpacked and its digests are right.
 */
export async function restore(
  file: string,
  archive: string,
  { force }: { readonly force?: true | undefined },
): Promise<number> {
  const configuration = await configure(readConfig(file, process.env));
  const dataDir = resolve(configuration.server.dataDir);
  const skipped = foldersOfSandboxes(configuration);
  let unpacked: string | undefined;
  let lock: DatabaseSync | undefined;
  try {
    const old = await stat(dataDir).catch(() => undefined);
    let isEmpty = true;
    if (old !== undefined) {
      const isData = (name: string) => name !== LOCK_NAME && !skipped.has(join(dataDir, name));
      isEmpty = !(await readdir(dataDir)).some(isData);
      if (!isEmpty && force !== true)
        throw new Error(`${dataDir} is not empty; --force keeps what it has beside it`);
      lock = await withoutServer(dataDir, skipped);
    }
    await mkdir(dirname(dataDir), { recursive: true, mode: 0o700 });
    unpacked = await mkdtemp(`${dataDir}.restored-`);
    await unpack(archive, { target: unpacked, owner: old });
    const reason = reasonLedgerUnusable(unpacked);
    if (reason !== undefined) throw new Error(reason);
    if (old !== undefined) {
      const kept = `${dataDir}.before-${Date.now()}`;
      const moved: string[] = [];
      await rename(dataDir, kept);
      try {
        for (const folder of skipped) {
          const local = relative(dataDir, folder);
          if (!existsSync(join(kept, local))) continue;
          await mkdir(dirname(join(unpacked, local)), { recursive: true, mode: 0o700 });
          await rename(join(kept, local), join(unpacked, local));
          moved.push(local);
        }
        await rename(unpacked, dataDir);
      } catch (error) {
        for (const local of moved) await rename(join(unpacked, local), join(kept, local));
        await rename(kept, dataDir);
        throw error;
      }
      if (isEmpty) await rm(kept, { recursive: true });
      else process.stderr.write(`coppice: the data that was there is in ${kept}\n`);
    } else await rename(unpacked, dataDir);
    unpacked = undefined;
    printLine(`${dataDir} has the data of ${archive}`);
    return 0;
  } catch (error) {
    printFailure(`nothing was restored: ${messageOf(error)}`);
    return 1;
  } finally {
    lock?.close();
    if (unpacked !== undefined) await rm(unpacked, { recursive: true, force: true });
  }
}

/** @returns a lock that keeps servers off. @throws Error when one runs, also one whose ledger is elsewhere. */
async function withoutServer(dataDir: string, skipped: ReadonlySet<string>): Promise<DatabaseSync> {
  let lock: DatabaseSync | undefined;
  const look = async (folder: string): Promise<void> => {
    for (const item of await readdir(folder, { withFileTypes: true })) {
      const path = join(folder, item.name);
      if (skipped.has(path)) continue;
      if (item.isDirectory()) await look(path);
      if (!item.isFile() || !item.name.endsWith(".sqlite")) continue;
      const store = new DatabaseSync(path, { timeout: 0 });
      try {
        store.exec("PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE; ROLLBACK");
      } finally {
        store.close();
      }
    }
  };
  try {
    lock = takeLock(dataDir);
    await look(dataDir);
    return lock;
  } catch (error) {
    lock?.close();
    throw new Error(`${dataDir} may be in use, stop its server first (${messageOf(error)})`, {
      cause: error,
    });
  }
}

interface Unpacking {
  readonly target: string;
  /** Owner of the directory that is replaced, if any. */
  readonly owner: { readonly uid: number; readonly gid: number } | undefined;
}

async function unpack(archive: string, { target, owner }: Unpacking): Promise<void> {
  const digests = new Map<string, string>();
  const owned: { readonly path: string; readonly uid: number; readonly gid: number }[] = [];
  let facts: Manifest | undefined;
  const entries = extract();
  const read = pipeline(createReadStream(archive), entries);
  // Told by the entries, too.
  read.catch(() => undefined);
  for await (const entry of entries as AsyncIterable<Entry>) {
    const { name, type, mode = 0o600, uid = 0, gid = 0 } = entry.header;
    if (facts !== undefined) throw new Error("the archive goes on after its manifest");
    if (name === MANIFEST && type === "file") {
      facts = await readManifest(entry);
      continue;
    }
    const local = placeOf(name);
    const path = join(target, local);
    if (type === "directory") {
      await mkdir(path, { recursive: true });
      await chmod(path, (mode & 0o777) | 0o700);
      entry.resume();
    } else if (type === "file") {
      const digest = createHash("sha256");
      const hashed = async function* (): AsyncGenerator<Buffer> {
        for await (const chunk of entry as AsyncIterable<Buffer>) {
          digest.update(chunk);
          yield chunk;
        }
      };
      await pipeline(hashed(), createWriteStream(path, { flags: "wx", mode: mode & 0o777, flush: true }));
      digests.set(local, digest.digest("hex"));
    } else throw new Error(`the archive has a ${type}, ${JSON.stringify(name)}`);
    owned.push({ path, uid, gid });
  }
  await read;
  if (facts === undefined) throw new Error("the archive is not whole: its manifest is missing");
  for (const { path, sha256 } of facts.files) {
    if (digests.get(path) !== sha256)
      throw new Error(`${JSON.stringify(path)} is not what the manifest says`);
    digests.delete(path);
  }
  for (const path of digests.keys()) throw new Error(`the manifest does not have ${JSON.stringify(path)}`);
  if (process.getuid?.() !== 0) return;
  const was = facts.owner;
  const now = owner ?? was;
  for (const { path, uid, gid } of [...owned, { path: target, ...was }])
    await chown(path, uid === was.uid ? now.uid : uid, gid === was.gid ? now.gid : gid);
}

/** A path in the data directory. @throws Error for a name that leaves it. */
function placeOf(name: string): string {
  const local = name.replace(/\/$/, "").slice(DATA.length);
  const isInside =
    name.startsWith(DATA) &&
    !name.includes("\0") &&
    local.split("/").every((part) => part !== "" && part !== "." && part !== "..");
  if (!isInside)
    throw new Error(`the archive has the name ${JSON.stringify(name)}, which is not of a backup`);
  return local;
}

async function readManifest(entry: Entry): Promise<Manifest> {
  const chunks: Buffer[] = [];
  if ((entry.header.size ?? 0) > MANIFEST_BYTES) throw new Error("its manifest is too large");
  for await (const chunk of entry as AsyncIterable<Buffer>) chunks.push(chunk);
  let value: unknown;
  try {
    value = JSON.parse(Buffer.concat(chunks).toString());
  } catch {
    throw new Error("its manifest is not JSON");
  }
  const parsed = manifest.safeParse(value);
  if (!parsed.success) throw new Error("its manifest is not one of a backup");
  const { format, version } = parsed.data;
  if (format > FORMAT || version.localeCompare(CORE.version, "en", { numeric: true }) > 0)
    throw new Error(`it was made by a newer version of Coppice (${version}, this is ${CORE.version})`);
  return parsed.data;
}
