import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { TestContext } from "node:test";
import { type Clock, type Logger, systemClock } from "@coppice/core";
import { Registry } from "prom-client";
import { commandsConfig } from "../commands-config.js";
import type { CommandEnd, LoggedPiece, OutputPiece } from "../contract/commands.js";
import { newCommandId } from "../table/command-label.js";
import { type CommandRecording, OutputLogs } from "../output-log/output-logs.js";
import { diskFiles, type LogFiles } from "../output-log/log-files.js";
import { logMetrics } from "../output-log/log-metrics.js";

export const ENDED_WELL: CommandEnd = { exit: { code: 0 }, outcome: "ok", endedAtMs: 1000 };

/** A command whose output and end a test provides. */
export class RecordedCommand {
  readonly id: string;
  readonly recording: CommandRecording;
  readonly #written: Buffer[] = [];
  #bytes = 0;

  constructor(id: string, recording: CommandRecording) {
    this.id = id;
    this.recording = recording;
  }

  get written(): Buffer {
    return Buffer.concat(this.#written);
  }

  write(data: string | Buffer, stream: OutputPiece["stream"] = "stdout"): void {
    const bytes = Buffer.from(data);
    this.recording.append({ stream, data: bytes, offset: this.#bytes });
    this.#written.push(bytes);
    this.#bytes += bytes.length;
  }

  /** Writes as a command does: waits when the log is full. */
  async writeAll(pieces: Iterable<string | Buffer>): Promise<void> {
    for (const piece of pieces) {
      this.write(piece);
      await this.recording.room();
    }
  }

  end(end = ENDED_WELL): void {
    this.recording.end(end);
  }
}

export interface LogSceneOptions {
  readonly directory: string;
  readonly settings?: Readonly<Record<string, unknown>>;
  readonly files?: LogFiles;
  readonly clock?: Clock;
}

/** The logs of a server, for commands without a process. */
export async function openLogs(options: LogSceneOptions) {
  const registry = new Registry();
  const logs: OutputLogs = new OutputLogs({
    config: commandsConfig.parse({ log: options.settings ?? {} }).log,
    files: options.files ?? diskFiles,
    clock: options.clock ?? systemClock,
    log: { info() {}, warn() {}, error() {} } as unknown as Logger,
    metrics: logMetrics(registry, () => logs.bytes),
  });
  await logs.open(() => options.directory);
  let pid = 100;
  return {
    logs,
    begin(sandboxId = "sandbox1", tag?: string, owner = "default"): RecordedCommand {
      const id = newCommandId(Date.now());
      const heading = { id, pid: pid++, path: "/bin/true", tag, startedAtMs: Date.now() };
      const recording = logs.begin({ id: sandboxId, owner }, heading);
      if (recording === undefined) throw new Error("nothing is recorded");
      return new RecordedCommand(id, recording);
    },
    /** Resolves when output is recorded again. */
    async recovery(): Promise<void> {
      while (isGivenUp(logs)) await sleep(1);
    },
    async metric(name: string): Promise<number> {
      const metric = await registry.getSingleMetric(`coppice_commands_log_${name}`)?.get();
      return metric?.values[0]?.value ?? NaN;
    },
  };
}

function isGivenUp(logs: OutputLogs): boolean {
  try {
    logs.check();
    return false;
  } catch {
    return true;
  }
}

export async function temporaryDirectory(context: TestContext): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), "coppice-log-"));
  context.after(() => rm(directory, { recursive: true, force: true }));
  return directory;
}

/** The bytes of consecutive pieces. @throws Error for a gap or an overlap. */
export async function joined(pieces: AsyncIterable<LoggedPiece> | Iterable<LoggedPiece>): Promise<Buffer> {
  const data: Buffer[] = [];
  let next: number | undefined;
  for await (const piece of pieces) {
    if (next !== undefined && piece.offset !== next)
      throw new Error(`a piece at ${piece.offset} follows what ended at ${next}`);
    data.push(Buffer.from(piece.data));
    next = piece.offset + piece.data.length;
  }
  return Buffer.concat(data);
}
