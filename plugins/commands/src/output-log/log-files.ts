import { mkdir, open, rename, rmdir, unlink } from "node:fs/promises";
import { dirname } from "node:path";
import { fairShare, ignoring } from "@coppice/core";
import type { OutputLogConfig } from "../commands-config.js";
import type { SandboxLog, Segment } from "./sandbox-log.js";

type Limits = "maxPerSandbox" | "maxTotal" | "maxSandboxes" | "maxAge";
export type RetentionLimits = Pick<OutputLogConfig, Limits> & { readonly maxSegmentsPerSandbox: number };

export interface Excess {
  readonly log: SandboxLog;
  readonly segment: Segment;
}

/** Segments of one sandbox beyond its limits, oldest first. The segment being written stays while it is not too old. */
export function excessOfSandbox(log: SandboxLog, limits: RetentionLimits, nowMs: number): readonly Excess[] {
  const excess: Excess[] = [];
  let { bytes } = log;
  let left = log.segments.length;
  for (const segment of log.segments) {
    const isOld = nowMs - segment.writtenAtMs >= limits.maxAge;
    const isTooMuch = bytes > limits.maxPerSandbox || left > limits.maxSegmentsPerSandbox;
    // Segments age in their order, so nothing after a young one is old.
    if (!isOld && (!isTooMuch || segment.index !== undefined)) break;
    excess.push({ log, segment });
    bytes -= segment.bytes;
    left -= 1;
  }
  return excess;
}

/**
 * Segments beyond the limits of all sandboxes together: of the tenants with the most, those that were not written for the
 * longest time.
 */
export function excessInTotal(logs: Iterable<SandboxLog>, limits: RetentionLimits): readonly Excess[] {
  const all: Excess[] = [];
  const left = new Map<SandboxLog, number>();
  const owners = new Map<string, { bytes: number; logs: number }>();
  for (const log of logs) {
    if (log.segments.length === 0) continue;
    left.set(log, log.segments.length);
    const own = owners.get(log.owner) ?? { bytes: 0, logs: 0 };
    owners.set(log.owner, own);
    own.logs += 1;
    for (const segment of log.segments) {
      all.push({ log, segment });
      own.bytes += segment.bytes;
    }
  }
  const mostBytes = fairShare(
    [...owners.values()].map(({ bytes }) => bytes),
    limits.maxTotal,
  );
  const mostLogs = fairShare(
    [...owners.values()].map(({ logs }) => logs),
    limits.maxSandboxes,
  );
  if (mostBytes === Infinity && mostLogs === Infinity) return [];
  all.sort((one, other) => one.segment.writtenAtMs - other.segment.writtenAtMs);
  return all.filter(({ log, segment }) => {
    const own = owners.get(log.owner);
    if (own === undefined || (own.bytes <= mostBytes && own.logs <= mostLogs)) return false;
    own.bytes -= segment.bytes;
    const rest = (left.get(log) ?? 0) - 1;
    left.set(log, rest);
    if (rest === 0) own.logs -= 1;
    return true;
  });
}

/** A file that is written from its beginning to its end. Its operations throw errors of the file system. */
export interface LogFile {
  /** Appends parts, which must not change meanwhile. @throws also when not all of it could be written. */
  append(parts: readonly Uint8Array[]): Promise<void>;
  /** Truncates the file after the last write. */
  cutOff(): Promise<void>;
  close(): Promise<void>;
}

/** Operations that change the files of the log. They throw errors of the file system. */
export interface LogFiles {
  /** Creates a file, and its directory, for this user alone. */
  create(path: string): Promise<LogFile>;
  /**
   * Reuses an obsolete file under a new name, with its cached pages, its disk space, and its old content after the
   * written part. If it is gone, a new file is created.
   */
  replace(old: string, path: string): Promise<LogFile>;
  /** Opens it again to continue at this byte. */
  reopen(path: string, position: number): Promise<LogFile>;
  /** Removes a file. A missing file is fine. */
  remove(path: string): Promise<void>;
  /** Removes an empty directory. */
  removeDirectory(path: string): Promise<void>;
}

export const diskFiles: LogFiles = {
  async create(path) {
    // First, because most logs have one file: a failed attempt to open it would cost more.
    await mkdir(dirname(path), { recursive: true, mode: 0o700 });
    return openForWriting(path, "wx");
  },
  async replace(old, path) {
    try {
      await rename(old, path);
    } catch (error) {
      ignoring("ENOENT")(error);
      return this.create(path);
    }
    return openForWriting(path, "r+");
  },
  reopen: (path, position) => openForWriting(path, "r+", position),
  async remove(path) {
    await unlink(path).catch(ignoring("ENOENT"));
  },
  async removeDirectory(path) {
    await rmdir(path).catch(ignoring("ENOENT", "ENOTEMPTY", "EEXIST"));
  },
};

async function openForWriting(path: string, flags: "r+" | "wx", from = 0): Promise<LogFile> {
  const file = await open(path, flags, 0o600);
  let position = from;
  return {
    async append(parts) {
      const wanted = parts.reduce((sum, { length }) => sum + length, 0);
      const { bytesWritten } = await file.writev(parts, position);
      position += bytesWritten;
      // A short write of a regular file means that the disk is full.
      if (bytesWritten < wanted) throw new Error("ENOSPC: no space left on device, write");
    },
    cutOff: () => file.truncate(position),
    close: () => file.close(),
  };
}
