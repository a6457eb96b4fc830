import { StringDecoder } from "node:string_decoder";
import { isTurnOver, laterTurn } from "@coppice/core";
import type { Output } from "@coppice/core/backend";

/** Longest line of a log, in characters: a longer one becomes several. */
const LONGEST = 4_096;
/** Bytes between two looks at the time: each may be a line. */
const PIECE = 1_024;

/** Makes lines of the output of a command: trimmed, and without empty ones. */
export class OutputLines {
  readonly #emit: (stream: Output["stream"], line: string) => void;
  readonly #streams = new Map<Output["stream"], { readonly decoder: StringDecoder; rest: string }>();

  constructor(emit: (stream: Output["stream"], line: string) => void) {
    this.#emit = emit;
  }

  /** Takes output, in as many turns of the event loop as its lines need. Call it again when it is done. */
  async push({ stream, data }: Output): Promise<void> {
    let own = this.#streams.get(stream);
    if (own === undefined)
      this.#streams.set(stream, (own = { decoder: new StringDecoder("utf8"), rest: "" }));
    for (let at = 0; at < data.byteLength; at += PIECE) {
      if (isTurnOver()) await laterTurn(this);
      const length = Math.min(PIECE, data.byteLength - at);
      const text = own.decoder.write(Buffer.from(data.buffer, data.byteOffset + at, length));
      const lines = (own.rest + text).split(/[\r\n]/);
      own.rest = lines.pop() ?? "";
      for (const line of lines) this.#line(stream, line);
      while (own.rest.length > LONGEST) {
        this.#line(stream, own.rest.slice(0, LONGEST));
        own.rest = own.rest.slice(LONGEST);
      }
    }
  }

  /** Emits what has no line feed at its end. */
  end(): void {
    for (const [stream, { decoder, rest }] of this.#streams) this.#line(stream, rest + decoder.end());
    this.#streams.clear();
  }

  #line(stream: Output["stream"], line: string): void {
    for (let at = 0; at < line.length; at += LONGEST) {
      const text = line.slice(at, at + LONGEST).trim();
      if (text !== "") this.#emit(stream, text);
    }
  }
}
