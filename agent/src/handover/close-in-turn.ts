import { close } from "node:fs";

let last: Promise<void> = Promise.resolve();

/**
 * Closes a descriptor of an agent that has ended, one after another in one thread of Node's pool: the last close of a
 * removed file frees its space, which takes a minute where a program inside has cut it into a million pieces.
 */
export function closeInTurn(descriptor: number): Promise<void> {
  last = last.then(() => new Promise((resolve) => close(descriptor, () => resolve())));
  return last;
}
