import { closeSync, existsSync, openSync, readFileSync, readSync } from "node:fs";

/** An entry of a tar file; a file when it has no type. */
export interface TarEntry {
  readonly name: string;
  readonly body?: string | Uint8Array;
  /**
   * `1` a hard link, `2` a symbolic link, `3` a character device, `4` a block device, `5` a directory, `6` a FIFO, `x` an
   * extended header.
   */
  readonly type?: "0" | "1" | "2" | "3" | "4" | "5" | "6" | "x";
  readonly link?: string;
  /** 755 for a directory and 644 for the rest when absent. */
  readonly mode?: number;
  /** Root's when absent. */
  readonly uid?: number;
  readonly gid?: number;
  /** Claimed size of the body; that of the body when absent. */
  readonly size?: number;
  /** Number of a device. */
  readonly device?: readonly [major: number, minor: number];
}

const BLOCK = 512;

/** A tar file (ustar) with whatever entries, also ones that no program would write. */
export function tarArchive(entries: readonly TarEntry[]): Buffer {
  return Buffer.concat([...entries.flatMap(blocksOf), Buffer.alloc(2 * BLOCK)]);
}

/** An extended header (pax) with records for the entry after it, such as `SCHILY.xattr.user.name`. */
export function extendedHeader(records: Readonly<Record<string, string>>): TarEntry {
  const lines = Object.entries(records).map(([key, value]) => {
    const rest = Buffer.byteLength(` ${key}=${value}\n`);
    // The length counts its own digits.
    const digits = [1, 2, 3, 4, 5, 6].find((count) => String(rest + count).length === count) ?? 0;
    return `${rest + digits} ${key}=${value}\n`;
  });
  return { name: "PaxHeader", type: "x", body: lines.join("") };
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

function blocksOf(entry: TarEntry): Buffer[] {
  const { name, type = "0", link = "", uid = 0, gid = 0, device } = entry;
  const body = Buffer.from(entry.body ?? "");
  const header = Buffer.alloc(BLOCK);
  const octal = (value: number, at: number, digits: number) =>
    header.write(`${value.toString(8).padStart(digits, "0")}\0`, at);
  header.write(name, 0, 100);
  octal(entry.mode ?? (type === "5" ? 0o755 : 0o644), 100, 7);
  octal(uid, 108, 7);
  octal(gid, 116, 7);
  octal(entry.size ?? body.byteLength, 124, 11);
  octal(0, 136, 11);
  header.fill(" ", 148, 156);
  header.write(type, 156);
  header.write(link, 157, 100);
  header.write("ustar\x0000", 257);
  if (device !== undefined) {
    octal(device[0], 329, 7);
    octal(device[1], 337, 7);
  }
  octal(
    header.reduce((sum, byte) => sum + byte, 0),
    148,
    6,
  );
  return [header, body, Buffer.alloc(-body.byteLength & (BLOCK - 1))];
}

/** Debian's static programs: they need no libraries. */
const BUSYBOX = "/bin/busybox";
const BASH = "/bin/bash-static";

const APPLETS = (
  "awk basename cat chgrp chmod chown cmp cp cut date dd dirname du echo env expr false find grep head hostname httpd " +
  "id kill ln ls md5sum mkdir mknod mktemp mv nc printf ps pwd readlink rm rmdir sed seq sh sleep sort stat tail tar " +
  "tee test touch tr true uname wc wget whoami xargs"
).split(" ");

const PASSWD = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/:/bin/sh\n";
/** As Debian has it: a login forgets the PATH that it was given. */
const PROFILE =
  'PATH=/usr/local/bin:/usr/bin:/bin\n[ -n "$LATER_PATH" ] && PATH=$PATH:$LATER_PATH\nexport PATH\n';

/** Reason why `smallRoot` cannot be made here; false when it can. */
export const WITHOUT_SMALL_ROOT: string | false =
  isStatic(BUSYBOX) && isStatic(BASH) ? false : "it needs busybox-static and bash-static (Debian)";

/** Debian's other busybox has the same path, and needs a loader. */
function isStatic(path: string): boolean {
  if (!existsSync(path)) return false;
  const head = Buffer.alloc(4096);
  const file = openSync(path, "r");
  readSync(file, head);
  closeSync(file);
  return !head.includes("/ld-linux");
}

/** The lowest layer of an image with bash, the tools of busybox, root, and a skeleton for homes. */
export function smallRoot(): readonly TarEntry[] {
  const directories = [
    "bin",
    "etc",
    "etc/skel",
    "root",
    "usr",
    "usr/bin",
    "usr/local",
    "usr/local/bin",
    "var",
  ];
  return [
    ...directories.map((name): TarEntry => ({ name: `${name}/`, type: "5" })),
    { name: "tmp/", type: "5", mode: 0o1777 },
    { name: "etc/passwd", body: PASSWD },
    { name: "etc/group", body: "root:x:0:\nnobody:x:65534:\n" },
    { name: "etc/profile", body: PROFILE },
    { name: "etc/skel/.bashrc", body: "# of the skeleton\n" },
    { name: "bin/busybox", body: readFileSync(BUSYBOX), mode: 0o755 },
    { name: "bin/bash", body: readFileSync(BASH), mode: 0o755 },
    ...APPLETS.map((name): TarEntry => ({ name: `bin/${name}`, type: "2", link: "busybox" })),
  ];
}
