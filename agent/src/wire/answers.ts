import { posix } from "node:path";
import { type FileInfo, SandboxError, fileSystemError } from "@coppice/core/backend";
import { type PayloadReader, ProtocolError, readWhole } from "./frames.js";

export interface Failure {
  readonly stage: number;
  readonly code: string;
  readonly detail: string;
}

export function readFailure(payload: Buffer): Failure {
  return readWhole(payload, (reader) => ({ stage: reader.u8(), code: reader.text(), detail: reader.text() }));
}

/** Translates a failed file operation, with the message of envd: `lstat /x: no such file or directory`. */
export function fileError(failure: Failure, operation: string, path: string): SandboxError {
  const { code: errno, detail } = failure;
  const lacksInodes = detail === "inodes";
  return (
    fileSystemError({ errno, operation, path, lacksInodes, cause: failure }) ??
    new SandboxError("file_operation_failed", `${operation} ${path}: ${errno}`, { cause: failure })
  );
}

/** The agent leaves out what a file has beyond. */
const MOST_METADATA_BYTES = 32_770;
const KINDS = ["file", "directory", "unknown"] as const;

/** @param path requested path, absolute. */
export function readFileInfo(reader: PayloadReader, path: string): FileInfo {
  const kind = KINDS[reader.u8()];
  if (kind === undefined) throw new ProtocolError("an unknown kind of file");
  const mode = reader.u32();
  const rawMode = reader.u32();
  const uid = reader.u32();
  const gid = reader.u32();
  const sizeBytes = reader.u64();
  const seconds = reader.i64();
  const nanoseconds = reader.u32();
  const owner = reader.text();
  const group = reader.text();
  const target = reader.text();
  const metadata = readMetadata(reader);
  return {
    name: posix.basename(path) || "/",
    path,
    kind,
    sizeBytes,
    mode: mode & 0o777,
    rawMode: rawMode & 0o177777,
    uid,
    gid,
    owner,
    group,
    modifiedAtMs: seconds * 1_000 + nanoseconds / 1_000_000,
    ...(target.startsWith("/") && { symlinkTarget: target }),
    metadata,
  };
}

function readMetadata(reader: PayloadReader): Readonly<Record<string, string>> {
  const pairs: [string, string][] = [];
  const before = reader.leftBytes;
  for (let left = reader.u16(); left > 0; left--) {
    pairs.push([reader.text(), reader.text()]);
    if (before - reader.leftBytes > MOST_METADATA_BYTES) throw new ProtocolError("too much metadata");
  }
  // A name such as `__proto__` is data here, too.
  return Object.fromEntries(pairs);
}
