import { SandboxError } from "@coppice/core";
import { REASONS } from "../reasons.js";

export const BLOCK_BYTES = 512;

/** Kinds of entries, by their letter in a header. A contiguous file is a file. */
const TYPES: Readonly<Record<string, EntryType>> = {
  "\0": "file",
  "0": "file",
  "7": "file",
  "1": "link",
  "2": "symlink",
  "5": "directory",
};
const LETTERS = { file: "0", link: "1", symlink: "2", directory: "5" } as const;
/** Most records of an extended header. */
const MAX_RECORDS = 1_000;
const MAX_LENGTH_DIGITS = 10;
const MAX_OCTAL_SECONDS = 8 ** 11 - 1;
/** The end of the year 9999: tar(1) fails for a time that its host cannot express. */
const MAX_SECONDS = 253_402_300_799;
const NAME_BYTES = 100;
const CHECKSUM_AT = 148;
const PAX_NAME = "PaxHeader";

type EntryType = "file" | "directory" | "symlink" | "link";

/** What is unpacked of an entry's header: neither owners nor other attributes. */
export interface TarHeader {
  readonly name: string;
  readonly type: EntryType;
  /** Target of a link; empty otherwise. */
  readonly linkname: string;
  readonly mode: number;
  /** Since the Unix epoch. */
  readonly mtimeSeconds: number;
  /** Bytes of contents, which files alone have. */
  readonly size: number;
}

/** A header block as it is in the archive: extended headers before it may say otherwise. */
interface RawHeader {
  /** Its letter: also those of extended headers, and of entries that nobody may unpack. */
  readonly letter: string;
  readonly name: Uint8Array;
  readonly linkname: Uint8Array;
  readonly mode: number;
  readonly mtimeSeconds: number;
  readonly size: number;
}

/** What extended headers say of the next entry. */
export interface Extended {
  readonly name?: Uint8Array;
  readonly linkname?: Uint8Array;
  readonly size?: number;
  readonly mtimeSeconds?: number;
}

/** The block of a header; undefined for the zeros at the end. @throws SandboxError invalid_argument when it is broken. */
export function decodeHeader(block: Buffer): RawHeader | undefined {
  let sum = 0;
  for (const [at, byte] of block.entries()) sum += isChecksum(at) ? 0x20 : byte;
  if (sum === 8 * 0x20 && block.every((byte) => byte === 0)) return undefined;
  if (numberAt(block, CHECKSUM_AT, 8) !== sum) throw broken("it is no tar archive, or a compressed one");
  const magic = block.toString("latin1", 257, 265);
  const isPosix = magic.startsWith("ustar\0");
  if (!isPosix && magic !== "ustar  \0") throw broken("it has a format that is not known");
  const name = textAt(block, 0, NAME_BYTES);
  const prefix = isPosix ? textAt(block, 345, 155) : Buffer.alloc(0);
  return {
    letter: block.toString("latin1", 156, 157),
    name: prefix.length > 0 ? Buffer.concat([prefix, Buffer.from("/"), name]) : name,
    linkname: textAt(block, 157, NAME_BYTES),
    mode: numberAt(block, 100, 8),
    mtimeSeconds: numberAt(block, 136, 12),
    size: numberAt(block, 124, 12),
  };
}

/** The header of an entry. @throws SandboxError invalid_argument for one that is no file, directory or link. */
export function entryHeader(raw: RawHeader, extended: Extended): TarHeader {
  const name = utf8(extended.name ?? raw.name);
  const told = JSON.stringify(name.slice(0, 200));
  const known = TYPES[raw.letter];
  if (known === undefined) throw unsafe(`${told} is no file, directory or link`);
  const type = known === "file" && name.endsWith("/") ? "directory" : known;
  const size = extended.size ?? raw.size;
  if (!Number.isSafeInteger(size) || size < 0) throw broken(`${told} has no valid size`);
  if (size > 0 && type !== "file") throw broken(`${told} has contents, but is no file`);
  const isLink = type === "symlink" || type === "link";
  const mtimeSeconds = extended.mtimeSeconds ?? raw.mtimeSeconds;
  return {
    name,
    type,
    linkname: isLink ? utf8(extended.linkname ?? raw.linkname) : "",
    mode: raw.mode & 0o777,
    mtimeSeconds: Math.abs(mtimeSeconds) <= MAX_SECONDS ? mtimeSeconds : 0,
    size,
  };
}

/**
 * The records of an extended header (pax).
 * @throws SandboxError invalid_argument for a broken one, and for a sparse file, whose contents start with a list of holes.
 */
export function decodeRecords(body: Buffer): Extended {
  const extended: { -readonly [Key in keyof Extended]: Extended[Key] } = {};
  let count = 0;
  for (let at = 0; at < body.length;) {
    count += 1;
    const digits = /^[1-9]\d* /.exec(body.toString("latin1", at, at + MAX_LENGTH_DIGITS))?.[0] ?? "";
    const end = at + Number.parseInt(digits, 10);
    const equals = body.indexOf("=", at);
    if (digits === "" || end > body.length || body[end - 1] !== 0x0a || equals < at || equals >= end) {
      throw broken("an extended header is broken");
    }
    if (count > MAX_RECORDS) throw broken("an extended header has too many records");
    const key = body.toString("utf8", at + digits.length, equals);
    const value = body.subarray(equals + 1, end - 1);
    if (key.startsWith("GNU.sparse.")) throw broken("it has a sparse file");
    // An empty value stands for the plain header's.
    if (value.length > 0) {
      if (key === "path") extended.name = value;
      if (key === "linkpath") extended.linkname = value;
      if (key === "size") extended.size = /^\d+$/.test(value.toString()) ? Number(value.toString()) : NaN;
      if (key === "mtime") extended.mtimeSeconds = Number(value.toString());
    }
    at = end;
  }
  return extended;
}

/** The blocks of an entry before its contents. What a plain header has no room for is in an extended one. */
export function encodeHeader(header: TarHeader): Buffer {
  const { name, linkname, mtimeSeconds } = header;
  const seconds = Math.min(Math.max(Math.trunc(mtimeSeconds), 0), MAX_OCTAL_SECONDS);
  const plain = plainHeader({ ...header, letter: LETTERS[header.type], mtimeSeconds: seconds });
  const isPlain = [name, linkname].every((text) => Buffer.byteLength(text) <= NAME_BYTES);
  if (isPlain && seconds === mtimeSeconds) return plain;
  const records = Buffer.concat([
    record("path", name),
    ...(linkname === "" ? [] : [record("linkpath", linkname)]),
    record("mtime", String(mtimeSeconds)),
  ]);
  const extended = plainHeader({
    name: PAX_NAME,
    letter: "x",
    linkname: "",
    mode: 0o600,
    mtimeSeconds: 0,
    size: records.length,
  });
  return Buffer.concat([extended, records, Buffer.alloc(paddingOf(records.length)), plain]);
}

/** Bytes between contents of that size and the next block. */
export function paddingOf(size: number): number {
  return (BLOCK_BYTES - (size % BLOCK_BYTES)) % BLOCK_BYTES;
}

function plainHeader(header: Omit<TarHeader, "type"> & { readonly letter: string }): Buffer {
  const block = Buffer.alloc(BLOCK_BYTES);
  // Cut: a longer one is in the extended header.
  Buffer.from(header.name).copy(block, 0, 0, NAME_BYTES);
  Buffer.from(header.linkname).copy(block, 157, 0, NAME_BYTES);
  block.write(octal(header.mode, 7), 100);
  block.write(`${octal(0, 7)}\0${octal(0, 7)}\0`, 108);
  if (header.size < 8 ** 11) block.write(octal(header.size, 11), 124);
  else {
    block.writeUInt8(0x80, 124);
    block.writeBigUInt64BE(BigInt(header.size), 128);
  }
  block.write(octal(header.mtimeSeconds, 11), 136);
  block.write(header.letter, 156);
  block.write("ustar\x0000", 257);
  let sum = 8 * 0x20;
  for (const byte of block) sum += byte;
  block.write(`${octal(sum, 6)}\0 `, CHECKSUM_AT);
  return block;
}

function record(key: string, value: string): Buffer {
  const rest = Buffer.from(` ${key}=${value}\n`);
  // The length counts its own digits.
  let length = rest.length;
  while (rest.length + String(length).length !== length) length = rest.length + String(length).length;
  return Buffer.concat([Buffer.from(String(length)), rest]);
}

function octal(value: number, digits: number): string {
  return value.toString(8).padStart(digits, "0");
}

function isChecksum(at: number): boolean {
  return at >= CHECKSUM_AT && at < CHECKSUM_AT + 8;
}

/** A number in octal digits, or in GNU's binary form; NaN for anything else. */
function numberAt(block: Buffer, at: number, length: number): number {
  const [first = 0] = block.subarray(at, at + 1);
  if (first === 0x80) return Number(BigInt(`0x${block.toString("hex", at + 1, at + length)}`));
  if (first === 0xff) {
    return Number(BigInt.asIntN(8 * length, BigInt(`0x${block.toString("hex", at, at + length)}`)));
  }
  const text = block
    .toString("latin1", at, at + length)
    .replace(/[\0 ]+$/, "")
    .trimStart();
  if (text === "") return 0;
  return /^[0-7]+$/.test(text) ? Number.parseInt(text, 8) : NaN;
}

function textAt(block: Buffer, at: number, length: number): Buffer {
  const text = block.subarray(at, at + length);
  const end = text.indexOf(0);
  return end === -1 ? text : text.subarray(0, end);
}

/** Another encoding would give the file another name. */
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function utf8(bytes: Uint8Array): string {
  try {
    return decoder.decode(bytes);
  } catch {
    throw broken("it has a name that is not UTF-8");
  }
}

export function broken(problem: string): SandboxError {
  return new SandboxError(REASONS.archive_invalid, `the archive is refused: ${problem}`);
}

export function unsafe(problem: string): SandboxError {
  return new SandboxError(REASONS.archive_unsafe, `the archive is refused: ${problem}`);
}
