import { StringDecoder } from "node:string_decoder";
import type { Output } from "@coppice/core/backend";

/** Longest line of a log, in characters: a longer one becomes several. */
const LONGEST = 4_096;

/** Makes lines of the output of a command: trimmed, and without empty ones. */
export class OutputLines {
  readonly #emit: (stream: Output["stream"], line: string) => void;
  readonly #streams = new Map<Output["stream"], { readonly decoder: StringDecoder; rest: string }>();

  constructor(emit: (stream: Output["stream"], line: string) => void) {
    this.#emit = emit;
  }

  push({ stream, data }: Output): void {
    let own = this.#streams.get(stream);
    if (own === undefined)
      this.#streams.set(stream, (own = { decoder: new StringDecoder("utf8"), rest: "" }));
    const lines = (
      own.rest + own.decoder.write(Buffer.from(data.buffer, data.byteOffset, data.byteLength))
    ).split("\n");
    own.rest = lines.pop() ?? "";
    for (const line of lines) this.#line(stream, line);
    while (own.rest.length > LONGEST) {
      this.#line(stream, own.rest.slice(0, LONGEST));
      own.rest = own.rest.slice(LONGEST);
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
