import type { LoggedPiece } from "../contract/commands.js";
import type { OutputRange } from "./log-reader.js";
import type { Recorder } from "./log-writer.js";

/** The log of one running command: records its output and plays it back. */
export interface CommandRecording extends Recorder {
  output(range: OutputRange): AsyncIterable<LoggedPiece>;
  /** Offset of the first kept byte at or after this one; undefined when none is kept. */
  keptFrom(offset: number): Promise<number | undefined>;
}
