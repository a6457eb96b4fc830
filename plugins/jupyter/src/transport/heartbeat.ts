import type { Duplex } from "node:stream";
import type { Clock } from "@coppice/core";
import { ZmtpChannel } from "./zmtp-channels.js";

export interface HeartbeatSettings {
  readonly clock: Clock;
  readonly intervalMs: number;
  /** Consecutive missed answers after which the peer counts as dead. */
  readonly maxMisses: number;
}

interface HeartbeatOptions extends HeartbeatSettings {
  readonly dial: (signal: AbortSignal) => Promise<Duplex>;
  /** True when the peer is known to answer. Otherwise silence counts only after its first answer. */
  readonly isSure: boolean;
  /** False while no answer is due: no pings are sent then, and missed ones are forgotten. */
  readonly isDue: () => boolean;
  /** Called once; no pings are sent afterwards. */
  readonly onSilent: () => void;
}

// A REP socket expects an empty frame before a DEALER's message.
const QUESTION = [Buffer.alloc(0), Buffer.from("ping")];
const MAX_ANSWER_BYTES = 1024;

/**
 * Pings a kernel's heartbeat socket over its own connection: one stream and one timer. Some kernels have no such
 * socket: where that is unknown, silence counts from the first answer on.
 */
export class Heartbeat {
  readonly #options: HeartbeatOptions;
  readonly #stopped = new AbortController();
  readonly #channel: ZmtpChannel;
  #counts: boolean;
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
      maxMessageBytes: MAX_ANSWER_BYTES,
      // It dials again, and the ping is repeated.
      onLost: () => undefined,
      closed: this.#stopped.signal,
    });
    void this.#listen();
    this.#beat();
  }

  /** Stops pinging. Safe to repeat. */
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
    // Counted from here: a server that was busy for long has missed one ping in that time, not many.
    this.#cancelNext = clock.after(intervalMs, () => this.#beat());
  }

  #ask(): void {
    this.#isAsked = true;
    // One ping waits for a connection; more of them would be answered all at once.
    if (this.#isSending) return;
    this.#isSending = true;
    const sent = (): void => void (this.#isSending = false);
    this.#channel.send(QUESTION).then(sent, sent);
  }
}
