import type { Duplex } from "node:stream";
import type { Clock } from "@coppice/core";
import { ZmtpChannel } from "./zmtp-channel.js";

export interface HeartbeatSettings {
  readonly clock: Clock;
  /** Between two questions. */
  readonly intervalMs: number;
  /** Questions in a row without an answer, after which the other end counts as dead. */
  readonly maxMisses: number;
}

export interface HeartbeatOptions extends HeartbeatSettings {
  /** Opens a stream to the socket that sends back what it is sent. */
  readonly dial: (signal: AbortSignal) => Promise<Duplex>;
  /** Whether the other end surely answers. Else its first answer makes it one whose silence means something. */
  readonly isSure: boolean;
  /** False while no answer is due: nothing is asked then, and what was missed before is forgotten. */
  readonly isDue: () => boolean;
  /** Told once; from then on nothing is asked. */
  readonly onSilent: () => void;
}

// A REP socket takes messages of a DEALER with an empty frame before them.
const QUESTION = [Buffer.alloc(0), Buffer.from("ping")];
const LARGEST_ANSWER_BYTES = 1024;

/**
 * Asks a kernel's heartbeat socket again and again, over a connection of its own: one stream and one timer. Not
 * every kernel has such a socket; where nobody knows, silence counts from its first answer on.
 */
export class Heartbeat {
  readonly #options: HeartbeatOptions;
  readonly #stopped = new AbortController();
  readonly #channel: ZmtpChannel;
  #counts: boolean;
  /** Asked, and not answered yet. */
  #isAsked = false;
  #isSending = false;
  #misses = 0;
  #cancelNext: () => void = () => undefined;

  constructor(options: HeartbeatOptions) {
    this.#options = options;
    this.#counts = options.isSure;
    this.#channel = new ZmtpChannel({
      socketType: "DEALER",
      identity: "",
      dial: options.dial,
      maxMessageBytes: LARGEST_ANSWER_BYTES,
      // It dials again, and what was asked is asked again.
      onLost: () => undefined,
      closed: this.#stopped.signal,
    });
    void this.#listen();
    this.#beat();
  }

  /** Asks no more. Safe to repeat. */
  stop(): void {
    this.#cancelNext();
    this.#stopped.abort();
  }

  async #listen(): Promise<void> {
    for await (const _answer of this.#channel.receive()) {
      this.#counts = true;
      this.#isAsked = false;
      this.#misses = 0;
    }
  }

  #beat(): void {
    const { clock, intervalMs, maxMisses, isDue, onSilent } = this.#options;
    if (!isDue()) {
      this.#isAsked = false;
      this.#misses = 0;
    } else {
      if (this.#isAsked && this.#counts) this.#misses++;
      if (this.#misses >= maxMisses) {
        this.stop();
        onSilent();
        return;
      }
      this.#ask();
    }
    // Counted from here: a server that was busy for long has asked once in that time, not many times.
    this.#cancelNext = clock.after(intervalMs, () => this.#beat());
  }

  #ask(): void {
    this.#isAsked = true;
    // One waits for a connection; more of them would be answered all at once.
    if (this.#isSending) return;
    this.#isSending = true;
    const sent = (): void => void (this.#isSending = false);
    this.#channel.send(QUESTION).then(sent, sent);
  }
}
