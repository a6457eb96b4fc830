import { inLaterTurn, isTurnOver, type Sender } from "./turns.js";

const NOTHING = Buffer.alloc(0);

export interface ReadsInTurnsOptions {
  /** Whose turns these are. */
  readonly sender: Sender;
  /** Brings the bytes, and can be asked to wait. */
  readonly source: { pause(): void; resume(): void };
  /** Reads what this turn of the event loop has time for. @returns how many bytes at the end it left. */
  readonly read: (bytes: Buffer) => number;
  /** Called when all that came before the end has been read. */
  readonly onEnd: () => void;
  /** True when the memory of what comes is used again: what waits is a copy. */
  readonly isReused?: boolean;
}

/** Gives a parser the bytes of a peer in turns of the event loop that have time for them. Its source waits meanwhile. */
export class ReadsInTurns {
  readonly #options: ReadsInTurnsOptions;
  #held: Buffer[] = [];
  #isWaiting = false;
  #isPaused = false;
  /** True while the end waits for what came before it. */
  #isEndHeld = false;

  constructor(options: ReadsInTurnsOptions) {
    this.#options = options;
  }

  /** True while bytes, or the source, wait for a turn. */
  get isHeld(): boolean {
    return this.#isWaiting || this.#held.length > 0;
  }

  /** @param isLate true when none of it is to be read in this turn. */
  receive(bytes: Buffer, isLate = false): void {
    const own = (): Buffer => (this.#options.isReused === true ? Buffer.from(bytes) : bytes);
    // What a source had read before it was paused.
    if (this.isHeld) this.#held.push(own());
    else if (isLate) this.#hold(own());
    else this.#read(bytes, this.#options.isReused !== true);
  }

  /** Tells that no more bytes come. */
  end(): void {
    if (this.isHeld) this.#isEndHeld = true;
    else this.#options.onEnd();
  }

  /** Nothing of what waits is read until `resume`. */
  pause(): void {
    this.#isPaused = true;
    this.#options.source.pause();
  }

  resume(): void {
    this.#isPaused = false;
    if (this.isHeld || this.#isEndHeld) this.#wait();
    else this.#options.source.resume();
  }

  #read(bytes: Buffer, isOwn: boolean): void {
    const left = this.#options.read(bytes);
    if (left === 0 && !isTurnOver()) return;
    // `read` may have released the memory of bytes of which it left none.
    const rest = left === 0 ? NOTHING : bytes.subarray(bytes.length - left);
    this.#hold(isOwn ? rest : Buffer.from(rest));
  }

  #hold(bytes: Buffer): void {
    this.#options.source.pause();
    if (bytes.length > 0) this.#held.unshift(bytes);
    this.#wait();
  }

  #wait(): void {
    if (this.#isWaiting) return;
    this.#isWaiting = true;
    inLaterTurn(this.#options.sender, () => {
      this.#isWaiting = false;
      if (!this.#isPaused) this.#readOn();
    });
  }

  #readOn(): void {
    const [first, ...more] = this.#held;
    this.#held = [];
    if (first !== undefined) this.#read(more.length === 0 ? first : Buffer.concat([first, ...more]), true);
    if (this.isHeld || this.#isPaused) return;
    if (!this.#isEndHeld) this.#options.source.resume();
    else {
      this.#isEndHeld = false;
      this.#options.onEnd();
    }
  }
}
