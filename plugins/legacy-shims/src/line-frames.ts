import { StringDecoder } from "node:string_decoder";
import type { Output } from "@coppice/core/backend";

/**
 * Output in the JSON dialect: texts that end with a line unless it is too long, so that no frame ends inside a
 * character. Joined, the texts of a stream equal its output.
 */
export class LineFrames {
  readonly #longestLine: number;
  readonly #pending = {
    stdout: { decoder: new StringDecoder("utf8"), text: "" },
    stderr: { decoder: new StringDecoder("utf8"), text: "" },
  };

  constructor(longestLine: number) {
    this.#longestLine = longestLine;
  }

  /** The frame that this output completes, if any. */
  push({ stream, data }: Output): string | undefined {
    const name = stream === "stderr" ? "stderr" : "stdout";
    const pending = this.#pending[name];
    pending.text += pending.decoder.write(Buffer.from(data.buffer, data.byteOffset, data.byteLength));
    const lineEnd = pending.text.lastIndexOf("\n") + 1;
    const length = lineEnd > 0 ? lineEnd : pending.text.length > this.#longestLine ? pending.text.length : 0;
    if (length === 0) return undefined;
    const text = pending.text.slice(0, length);
    pending.text = pending.text.slice(length);
    return JSON.stringify({ type: name, text });
  }

  /** The remaining unfinished lines at the end. */
  finish(): readonly string[] {
    return (["stdout", "stderr"] as const).flatMap((type) => {
      const text = this.#pending[type].text + this.#pending[type].decoder.end();
      return text === "" ? [] : [JSON.stringify({ type, text })];
    });
  }
}
