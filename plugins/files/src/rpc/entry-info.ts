import type { FileInfo, FileKind } from "@coppice/core/backend";
import { create } from "@bufbuild/protobuf";
import { type Timestamp, timestampFromMs } from "@bufbuild/protobuf/wkt";
import { type EntryInfo, EntryInfoSchema, FileType } from "../generated/filesystem/filesystem_pb.js";
import { goFileMode } from "./go-file-mode.js";

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
