import { type LiveSandbox, resolveSandboxPath, SandboxError, type Spool, unlessAborted } from "@coppice/core";
import { checkExit, outputOf, startTar } from "./tar-process.js";
import { readArchive } from "./read-archive.js";
import { BLOCK_BYTES, broken, encodeHeader, paddingOf, type TarHeader, unsafe } from "./tar-blocks.js";
import { posix } from "node:path";

const MAX_NAME_BYTES = 4095;
/** Names that are kept, to be compared with those of later entries. */
const MAX_NAMES_BYTES = 32 * 2 ** 20;

/**
 * Checks that the entries of an archive stay below the directory that it is unpacked in, also when their links are
 * followed: no absolute name, no `..`, no entry behind a link of the archive, no link out, no device, no pipe.
 */
export class SafeEntries {
  readonly #maxEntries: number;
  /** Targets of symbolic links by their paths; undefined for hard links to what is none. */
  readonly #links = new Map<string, string | undefined>();
  /** Directories that have entries, which no link may replace. */
  readonly #parents = new Set<string>();
  #count = 0;
  #nameBytes = 0;

  constructor(maxEntries: number) {
    this.#maxEntries = maxEntries;
  }

  /** @throws SandboxError invalid_argument with the name of an entry that may not be unpacked. */
  check({ name, type, linkname }: Pick<TarHeader, "name" | "type" | "linkname">): void {
    this.#count += 1;
    this.#checkCount();
    this.#nameBytes += Buffer.byteLength(name);
    if (this.#nameBytes > MAX_NAMES_BYTES) throw unsafe("its names are too long together");
    const told = JSON.stringify(name.slice(0, 200));
    const path = this.#inside(name);
    if (path === undefined) throw unsafe(`${told} leaves the directory`);
    if (type !== "symlink" && type !== "link") return;
    if (this.#parents.has(path)) throw unsafe(`${told} replaces a directory`);
    this.#nameBytes += Buffer.byteLength(linkname);
    const linked = type === "link" ? this.#inside(linkname) : undefined;
    const isOut = type === "link" && linked === undefined;
    // A hard link to a symbolic one is another symbolic one, which leads elsewhere from its own place.
    const target = type === "link" ? this.#links.get(linked ?? "") : linkname;
    if (isOut || (target !== undefined && !isInside(path, target))) {
      throw unsafe(`${told} links out of the directory`);
    }
    // A symbolic link that stood here before counts on, for the case that a hard one cannot replace it.
    this.#links.set(path, target ?? this.#links.get(path));
  }

  /** The plain form of a name; undefined when it leaves the directory or passes a link. */
  #inside(name: string): string | undefined {
    if (name === "" || name.startsWith("/") || name.includes("\0") || name.split("/").includes(".."))
      return undefined;
    if (Buffer.byteLength(name) > MAX_NAME_BYTES) return undefined;
    const path = posix.normalize(name).replace(/\/+$/, "");
    for (let above = posix.dirname(path); above !== "."; above = posix.dirname(above)) {
      if (this.#links.has(above)) return undefined;
      // Then those above it are known, too.
      if (this.#parents.has(above)) break;
      this.#parents.add(above);
      this.#checkCount();
    }
    return path;
  }

  /** Directories that are only in the names of entries count as entries. */
  #checkCount(): void {
    if (Math.max(this.#count, this.#parents.size) <= this.#maxEntries) return;
    throw unsafe(`it has more than ${this.#maxEntries} entries`);
  }
}

/**
 * True when the target of a symbolic link is below the directory. `..` may only stand at its beginning: behind another
 * link it would lead from that link's target.
 */
function isInside(path: string, target: string): boolean {
  if (target === "" || target.startsWith("/") || target.includes("\0")) return false;
  const names = target.split("/").filter((name) => name !== "" && name !== ".");
  const ups = names.findIndex((name) => name !== "..");
  if (ups !== -1 && names.slice(ups).includes("..")) return false;
  const depth = path.split("/").length - 1;
  return (ups === -1 ? names.length : ups) <= depth;
}

type SpoolFile = Awaited<ReturnType<Spool["open"]>>;

interface ImportOptions {
  readonly destination: string;
  readonly tarball: AsyncIterable<Uint8Array>;
  /** Where the checked archive waits. */
  readonly spool: Spool;
  /** Whose share of the spool it takes. */
  readonly tenant: string;
  readonly maxBytes: number;
  readonly maxEntries: number;
  /** Aborted when the client leaves. */
  readonly signal: AbortSignal;
}

/**
 * Unpacks an archive in a sandbox: nothing of it before all of it was checked.
 * @throws SandboxError as `repack`; failed_precondition when tar(1) fails, resource_exhausted without room; the
 * signal's reason when it aborts.
 */
export async function importArchive(
  sandbox: LiveSandbox,
  { destination, tarball, spool, tenant, maxBytes, maxEntries, signal }: ImportOptions,
): Promise<Repacked & { readonly dest: string }> {
  const user = await sandbox.runtime.user();
  const dest = resolveSandboxPath(destination, user);
  await using file = await spool.open(tenant);
  const repacked = await repack(tarball, { file, maxBytes, maxEntries });
  await sandbox.runtime.files.makeDir(dest).catch((error: unknown) => {
    if (!(error instanceof SandboxError) || error.code !== "already_exists") throw error;
  });
  await unpack(sandbox, file, { dest, signal });
  return { ...repacked, dest };
}

async function unpack(
  sandbox: LiveSandbox,
  file: SpoolFile,
  { dest, signal }: { readonly dest: string; readonly signal: AbortSignal },
): Promise<void> {
  const process = await startTar(sandbox, {
    args: ["-x", "-o", "-f", "-"],
    cwd: dest,
    input: "pipe",
    signal,
  });
  const told = { text: "" };
  const read = (async () => {
    for await (const _ of outputOf(process, told, signal));
  })();
  // It is awaited later, or not at all when the client leaves.
  read.catch(() => undefined);
  try {
    for await (const piece of file.pieces()) {
      // Copied: `write` promises that the bytes were accepted, not that they were read.
      const chunk = Buffer.from(piece);
      await unlessAborted(signal, () => process.write(chunk));
    }
    await process.closeInput();
  } catch {
    // It has ended: its exit says why.
  }
  await read;
  await checkExit(process, { told: told.text, allowed: [0] });
}

interface RepackOptions {
  /** Written to. */
  readonly file: SpoolFile;
  readonly maxBytes: number;
  readonly maxEntries: number;
}

interface Repacked {
  /** Files and links. */
  readonly imported: number;
  /** Their contents. */
  readonly bytes: number;
}

/**
 * Checks an archive while it arrives, and writes it anew: what unpacks it later reads the headers that were checked, and
 * not others that it would find in the same bytes.
 * @throws SandboxError invalid_argument for an archive that is broken, too large, or leaves its directory; the errors of
 * `source`.
 */
async function repack(source: AsyncIterable<Uint8Array>, options: RepackOptions): Promise<Repacked> {
  const { file, maxBytes, maxEntries } = options;
  const entries = new SafeEntries(maxEntries);
  let imported = 0;
  let bytes = 0;
  for await (const { header, contents } of readArchive(limited(source, maxBytes))) {
    entries.check(header);
    await file.write(encodeHeader(header));
    for await (const chunk of contents) {
      bytes += chunk.length;
      await file.write(chunk);
    }
    await file.write(Buffer.alloc(paddingOf(header.size)));
    if (header.type !== "directory") imported += 1;
  }
  await file.write(Buffer.alloc(2 * BLOCK_BYTES));
  return { imported, bytes };
}

async function* limited(source: AsyncIterable<Uint8Array>, maxBytes: number): AsyncGenerator<Uint8Array> {
  let bytes = 0;
  for await (const chunk of source) {
    bytes += chunk.length;
    if (bytes > maxBytes) throw broken(`it is larger than ${maxBytes} bytes`);
    yield chunk;
  }
  if (bytes === 0) throw broken("it is empty");
}
