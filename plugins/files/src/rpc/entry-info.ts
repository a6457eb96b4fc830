import type { FileInfo, FileKind } from "@coppice/core/backend";
import { create } from "@bufbuild/protobuf";
import { type Timestamp, timestampFromMs } from "@bufbuild/protobuf/wkt";
import { type EntryInfo, EntryInfoSchema, FileType } from "../generated/filesystem/filesystem_pb.js";

// The SDKs drop entries without a type: devices, sockets, pipes and dangling links.
const TYPES: Readonly<Record<FileKind, FileType>> = {
  file: FileType.FILE,
  directory: FileType.DIRECTORY,
  unknown: FileType.UNSPECIFIED,
};

/** One entry as the SDKs read it. */
export function toEntryInfo(info: FileInfo): EntryInfo {
  return create(EntryInfoSchema, {
    name: info.name,
    type: TYPES[info.kind],
    path: info.path,
    size: BigInt(info.sizeBytes),
    mode: info.mode,
    permissions: goFileMode(info.rawMode),
    owner: info.owner,
    group: info.group,
    modifiedTime: toTimestamp(info.modifiedAtMs),
    ...(info.symlinkTarget === undefined ? {} : { symlinkTarget: info.symlinkTarget }),
    metadata: { ...info.metadata },
  });
}

function toTimestamp(atMs: number): Timestamp {
  const wholeMs = Math.floor(atMs);
  const timestamp = timestampFromMs(wholeMs);
  // A double holds today's date to about a quarter of a microsecond.
  timestamp.nanos += Math.floor((atMs - wholeMs) * 1000) * 1000;
  return timestamp;
}

const TYPE = 0o170000;

/** Letters of the file types, as Go's `fs.FileMode` prints them. A regular file has none. */
const TYPE_LETTERS: ReadonlyMap<number, string> = new Map([
  [0o040000, "d"],
  [0o120000, "L"],
  [0o060000, "D"],
  [0o010000, "p"],
  [0o140000, "S"],
  [0o020000, "Dc"],
]);

/**
 * Formats `st_mode` as Go does: `-rw-r--r--`, `Lrwxrwxrwx`, `dtrwxrwxrwx`. The special bits stand before the nine
 * permission letters, so the text may exceed ten characters.
 */
export function goFileMode(rawMode: number): string {
  const letters = [
    // Go's order is fixed by its bit numbers, where sticky comes after character device.
    (TYPE_LETTERS.get(rawMode & TYPE) ?? "").slice(0, 1),
    rawMode & 0o4000 ? "u" : "",
    rawMode & 0o2000 ? "g" : "",
    (TYPE_LETTERS.get(rawMode & TYPE) ?? "").slice(1),
    rawMode & 0o1000 ? "t" : "",
  ].join("");
  const permissions = Array.from("rwxrwxrwx", (letter, index) => (rawMode & (0o400 >> index) ? letter : "-"));
  return (letters || "-") + permissions.join("");
}
