import { visibleText } from "./visible-text.js";

/** Tells on stderr what failed: the text may be of a server, a sandbox or a registry. */
export function printFailure(
  text: string,
  stream: Pick<NodeJS.WriteStream, "write" | "isTTY"> = process.stderr,
): void {
  stream.write(`coppice: ${stream.isTTY ? visibleText(text) : text}\n`);
}
