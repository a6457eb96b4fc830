/** An entry of a tar file; a file when it has no type. */
export interface TarEntry {
  readonly name: string;
  readonly body?: string;
  /** `1` a hard link, `2` a symbolic link, `3` a character device, `5` a directory, `6` a FIFO. */
  readonly type?: "0" | "1" | "2" | "3" | "4" | "5" | "6";
  readonly link?: string;
}

const BLOCK = 512;

/** A tar file (ustar) with whatever entries, also ones that no program would write. */
export function tarArchive(entries: readonly TarEntry[]): Buffer {
  return Buffer.concat([...entries.flatMap(blocksOf), Buffer.alloc(2 * BLOCK)]);
}

/** Names of the entries of a tar file, and the content of its files. */
export function entriesOfTar(archive: Buffer): ReadonlyMap<string, string> {
  const found = new Map<string, string>();
  for (let at = 0; at < archive.length && archive[at] !== 0;) {
    const text = (from: number, length: number) =>
      archive.toString("utf8", at + from, at + from + length).replace(/\0.*$/s, "");
    const size = Number.parseInt(text(124, 12), 8) || 0;
    const prefix = text(345, 155);
    const body = archive.toString("utf8", at + BLOCK, at + BLOCK + size);
    // Extended headers describe the entry after them.
    if (!"xg".includes(text(156, 1))) found.set((prefix && `${prefix}/`) + text(0, 100), body);
    at += BLOCK + Math.ceil(size / BLOCK) * BLOCK;
  }
  return found;
}

function blocksOf({ name, body = "", type = "0", link = "" }: TarEntry): Buffer[] {
  const header = Buffer.alloc(BLOCK);
  const octal = (value: number, at: number, digits: number) =>
    header.write(`${value.toString(8).padStart(digits, "0")}\0`, at);
  header.write(name, 0);
  octal(type === "5" ? 0o755 : 0o644, 100, 7);
  octal(0, 108, 7);
  octal(0, 116, 7);
  octal(Buffer.byteLength(body), 124, 11);
  octal(0, 136, 11);
  header.fill(" ", 148, 156);
  header.write(type, 156);
  header.write(link, 157);
  header.write("ustar\x0000", 257);
  octal(
    header.reduce((sum, byte) => sum + byte, 0),
    148,
    6,
  );
  const content = Buffer.alloc(Math.ceil(Buffer.byteLength(body) / BLOCK) * BLOCK);
  content.write(body);
  return [header, content];
}
