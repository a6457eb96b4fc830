/** Splits a stream of bytes into lines of text, each with its newline, except perhaps the last. */
export class TextLines {
  readonly #longestLine: number;
  // ignoreBOM: the bytes are a command's, a leading mark included.
  readonly #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  #rest = "";

  /** @param longestLine UTF-16 units after which a line is returned unfinished. */
  constructor(longestLine: number) {
    this.#longestLine = longestLine;
  }

  /** The lines that these bytes complete. Bytes that are not UTF-8 become U+FFFD. */
  push(data: Uint8Array): readonly string[] {
    return this.#take(this.#decoder.decode(data, { stream: true }));
  }

  finish(): readonly string[] {
    const lines = this.#take(this.#decoder.decode());
    return this.#rest === "" ? lines : [...lines, this.#rest];
  }

  #take(text: string): readonly string[] {
    const lines: string[] = [];
    let start = 0;
    for (let newline = text.indexOf("\n"); newline >= 0; newline = text.indexOf("\n", start)) {
      lines.push(this.#rest + text.slice(start, newline + 1));
      this.#rest = "";
      start = newline + 1;
    }
    this.#rest += text.slice(start);
    if (this.#rest.length >= this.#longestLine) {
      lines.push(this.#rest);
      this.#rest = "";
    }
    return lines;
  }
}
