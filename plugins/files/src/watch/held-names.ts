import { close, closeSync, constants, fstatSync, openSync, readlinkSync } from "node:fs";
import { type EntryState, stateOf } from "./entry-state.js";

/** Of Linux; Node has no name for it. Opens an entry for looking at, whatever it is, without any effect. */
const O_PATH = 0o10000000;
const CAN_HOLD = process.platform === "linux";

/** A name of an entry that is held: when the name is gone, the kernel still knows how it went. */
export interface HeldName {
  /** Whether the name was removed; if not, it was moved. Undefined where the kernel does not say. */
  isRemoved(): boolean | undefined;
  /** What the entry is now, wherever it is. */
  state(): EntryState;
  release(): void;
}

/**
 * Holds names of entries, by a descriptor each, so that a move out of a watch can be told from a removal. Only on
 * Linux: other kernels tell neither a move nor a removal to who has the entry open.
 */
export class HeldNames {
  readonly #limit: number;
  #count = 0;

  /** @param limit most descriptors at a time. */
  constructor(limit: number) {
    this.#limit = limit;
  }

  /** Undefined when there are too many, or when the name has another entry by now. */
  hold(hostPath: string, identity: string): HeldName | undefined {
    if (!CAN_HOLD || this.#count >= this.#limit) return undefined;
    let descriptor: number;
    try {
      descriptor = openSync(hostPath, O_PATH | constants.O_NOFOLLOW);
    } catch {
      return undefined;
    }
    if (stateOf(fstatSync(descriptor)).identity !== identity) {
      closeSync(descriptor);
      return undefined;
    }
    this.#count++;
    let isHeld = true;
    return {
      isRemoved: () => isRemoved(descriptor),
      state: () => stateOf(fstatSync(descriptor)),
      release: () => {
        if (!isHeld) return;
        isHeld = false;
        // Who lets go last of a large file that was removed waits until the kernel has given back its memory.
        close(descriptor, () => {
          this.#count--;
        });
      },
    };
  }
}

function isRemoved(descriptor: number): boolean | undefined {
  try {
    return readlinkSync(`/proc/self/fd/${descriptor}`).endsWith(" (deleted)");
  } catch {
    // Too deep to be told, or there is no /proc.
    return undefined;
  }
}
