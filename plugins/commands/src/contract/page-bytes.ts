import type { OutputPage } from "./commands.js";
import { unfinishedBytes } from "./unfinished-bytes.js";

const MAX_CHARACTER = 4;

export interface PageBytesOptions {
  /** Only the bytes of this stream; those of all when absent. */
  readonly wanted?: OutputPage["pieces"][number]["stream"] | undefined;
  /** An incomplete character is left to the next page, unless nothing else can follow. */
  readonly isText: boolean;
}

/** The bytes of a page, and the cursor after them, which counts the bytes of all streams. */
export function pageBytes({ command, pieces, nextCursor }: OutputPage, { wanted, isText }: PageBytesOptions) {
  const bytes = Buffer.concat(pieces.flatMap(({ stream, data }) => (isWanted(stream, wanted) ? [data] : [])));
  const isRunning = command.phase === "running";
  const tail = lastOfOneStream(pieces, wanted);
  const cut = isText && (isRunning || nextCursor < command.outputBytes) ? unfinishedBytes(tail) : 0;
  // The rest of the character may be lost: the page of an ended command is complete in any case.
  if (cut === bytes.length && !isRunning) return { bytes, nextCursor };
  return { bytes: bytes.subarray(0, bytes.length - cut), nextCursor: nextCursor - cut };
}

/** The end of the page, in one stream: the cursor cannot skip another stream's output within a character. */
function lastOfOneStream(pieces: OutputPage["pieces"], wanted: PageBytesOptions["wanted"]): Uint8Array {
  const last = pieces.at(-1);
  if (last === undefined || !isWanted(last.stream, wanted)) return Buffer.alloc(0);
  const run: Uint8Array[] = [];
  let length = 0;
  for (const { stream, data } of pieces.toReversed()) {
    if (stream !== last.stream || length >= MAX_CHARACTER) break;
    run.unshift(data.subarray(-MAX_CHARACTER));
    length += data.length;
  }
  return Buffer.concat(run);
}

function isWanted(stream: string, wanted: string | undefined): boolean {
  return wanted === undefined || stream === wanted;
}
