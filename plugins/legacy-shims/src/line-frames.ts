import type { Output } from "@coppice/core/backend";
import { TextLines } from "@coppice/plugin-commands";

/**
 * Output in the JSON dialect: texts that end with a line unless it is too long, so that no frame ends inside a
 * character. Joined, the texts of a stream equal its output.
 */
export class LineFrames {
  readonly #lines: { readonly stdout: TextLines; readonly stderr: TextLines };

  constructor(longestLine: number) {
    this.#lines = { stdout: new TextLines(longestLine + 1), stderr: new TextLines(longestLine + 1) };
  }

  /** The frame that this output completes, if any. */
  push({ stream, data }: Output): string | undefined {
    const type = stream === "stderr" ? "stderr" : "stdout";
    return frameOf(type, this.#lines[type].push(data));
  }

  /** The remaining unfinished lines at the end. */
  finish(): readonly string[] {
    return (["stdout", "stderr"] as const).flatMap((type) => frameOf(type, this.#lines[type].finish()) ?? []);
  }
}

function frameOf(type: "stdout" | "stderr", lines: readonly string[]): string | undefined {
  return lines.length === 0 ? undefined : JSON.stringify({ type, text: lines.join("") });
}
