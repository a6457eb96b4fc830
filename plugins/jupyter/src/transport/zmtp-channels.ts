import { once } from "node:events";
import { Socket } from "node:net";
import type { Duplex } from "node:stream";
import { setTimeout as delay } from "node:timers/promises";
import { type HeldMemory, isTurnOver, laterTurn, type Logger, releaseMemory, Semaphore } from "@coppice/core";
import { sizeOf } from "./wire.js";
import type {
  ChannelName,
  KernelChannels,
  KernelChannelsOptions,
  OpenKernelChannels,
} from "./kernel-channels.js";
import { zmtpCommand, ZmtpError, zmtpGreeting, zmtpMessage, ZmtpReader, zmtpReady } from "./zmtp.js";

/** ZMTP over a sandbox's streams. Unread messages stay in the connection, so that the kernel waits. */
export class ZmtpChannels implements KernelChannels {
  readonly #closed = new AbortController();
  readonly #channels: Readonly<Record<ChannelName, ZmtpChannel>>;

  constructor({ ports, dial, held, identity, maxMessageBytes, onLost }: KernelChannelsOptions) {
    const open = (name: ChannelName): ZmtpChannel =>
      new ZmtpChannel({
        ...(name === "iopub" ? { socketType: "SUB", identity: "" } : { socketType: "DEALER", identity }),
        dial: (signal) => dial(ports[name], signal),
        maxMessageBytes,
        held,
        onLost: () => onLost(name),
        closed: this.#closed.signal,
      });
    this.#channels = {
      shell: open("shell"),
      control: open("control"),
      // With the same identity as shell: a kernel sends its input requests to the sender of the cell.
      stdin: open("stdin"),
      iopub: open("iopub"),
    };
  }

  send(channel: Exclude<ChannelName, "iopub">, frames: readonly Buffer[]): Promise<void> {
    return this.#channels[channel].send(frames);
  }

  receive(channel: ChannelName): AsyncIterable<readonly Buffer[]> {
    return this.#channels[channel].receive();
  }

  async close(): Promise<void> {
    this.#closed.abort(new ZmtpError("the channels are closed"));
  }
}

interface ZmtpChannelOptions {
  readonly socketType: "DEALER" | "SUB";
  /** Address for the peer's answers; when empty, the peer chooses one. */
  readonly identity: string;
  readonly dial: (signal: AbortSignal) => Promise<Duplex>;
  readonly maxMessageBytes: number;
  /** Counts what is in memory; undefined where messages are small. */
  readonly held?: HeldMemory;
  readonly onLost: () => void;
  readonly closed: AbortSignal;
}

const FIRST_REDIAL_MS = 5;
const MAX_REDIAL_MS = 100;
const HANDSHAKE_MS = 5000;
const SUBSCRIBE_TO_ALL = Buffer.from([1]);

/** One of the `KernelChannels` over a sandbox's stream: dialled while it has a reader, and again when it is lost. */
export class ZmtpChannel {
  readonly #options: ZmtpChannelOptions;
  readonly #closed: AbortSignal;
  #ready = unclaimed();
  readonly #sending = new Semaphore();
  readonly #unsent: ReturnType<HeldMemory["place"]> | undefined;
  #unsentBytes = 0;

  constructor(options: ZmtpChannelOptions) {
    const { closed } = options;
    this.#options = options;
    this.#closed = closed;
    this.#unsent = options.held?.place();
    closed.addEventListener("abort", () => this.#ready.reject(closed.reason), { once: true });
  }

  async send(frames: readonly Buffer[]): Promise<void> {
    const bytes = sizeOf(frames);
    this.#unsent?.resize((this.#unsentBytes += bytes));
    try {
      await this.#sending.run(() => this.#send(frames));
    } finally {
      this.#unsent?.resize((this.#unsentBytes -= bytes));
    }
  }

  async *receive(): AsyncGenerator<readonly Buffer[], void, undefined> {
    for (let waitMs = FIRST_REDIAL_MS; ; waitMs = Math.min(2 * waitMs, MAX_REDIAL_MS)) {
      // Undefined when nothing listens.
      const stream = await this.#options.dial(this.#closed).catch(() => undefined);
      if (stream !== undefined) {
        // Nagle's algorithm would delay a small request by 40 ms.
        if (stream instanceof Socket) stream.setNoDelay(true);
        try {
          for await (const frames of this.#read(stream)) {
            waitMs = FIRST_REDIAL_MS;
            yield frames;
          }
        } catch {
          // A kernel that breaks the protocol counts as one that broke the connection.
        }
        if (!this.#closed.aborted) this.#options.onLost();
      }
      if (this.#closed.aborted) return;
      await delay(waitMs, undefined, { signal: this.#closed, ref: false }).catch(() => undefined);
    }
  }

  async #send(frames: readonly Buffer[]): Promise<void> {
    const stream = await this.#ready.promise;
    this.#closed.throwIfAborted();
    let isFull = false;
    for (const piece of zmtpMessage(frames)) isFull = !stream.write(piece);
    if (!isFull || stream.destroyed) return;
    const waiting = new AbortController();
    const { signal } = waiting;
    try {
      // Lost with the connection, as it would be a moment later.
      await Promise.race([once(stream, "drain", { signal }), once(stream, "close", { signal })]);
    } finally {
      // The listeners of the one that lost.
      waiting.abort();
    }
  }

  async *#read(stream: Duplex): AsyncGenerator<readonly Buffer[], void, undefined> {
    const { held, identity, maxMessageBytes, socketType } = this.#options;
    const abort = (): void => void stream.destroy();
    const tooSlow = setTimeout(abort, HANDSHAKE_MS);
    let isReady = false;
    using message = held?.place();
    const reader = new ZmtpReader({ maxMessageBytes, drop: releaseMemory });
    this.#closed.addEventListener("abort", abort, { once: true });
    // The end of the read below reports the failure.
    stream.on("error", () => undefined);
    try {
      if (this.#closed.aborted) return;
      stream.write(zmtpGreeting());
      for await (const chunk of stream as AsyncIterable<Buffer>) {
        for (const event of reader.read(chunk)) {
          // One signal for all channels of a kernel.
          if (isTurnOver()) await laterTurn(this.#closed);
          if (event.kind === "greeting") stream.write(zmtpReady(socketType, identity));
          else if (event.kind === "command") {
            // Answers pings only while the peer reads.
            if (event.name === "PING" && !stream.writableNeedDrain)
              stream.write(zmtpCommand("PONG", event.body.subarray(2)));
            else if (event.name === "ERROR") throw new ZmtpError("the kernel refused the connection");
            else if (event.name === "READY" && !isReady) {
              isReady = true;
              clearTimeout(tooSlow);
              this.#isOpen(stream);
            }
          } else if (isReady) {
            message?.resize(sizeOf(event.frames));
            yield event.frames;
          } else throw new ZmtpError("a message before the handshake was over");
        }
        message?.resize(reader.openBytes);
        releaseMemory(chunk);
      }
    } finally {
      clearTimeout(tooSlow);
      this.#closed.removeEventListener("abort", abort);
      stream.destroy();
      reader.end();
      // Messages for a failed connection wait for the next one.
      if (isReady && !this.#closed.aborted) this.#ready = unclaimed();
    }
  }

  // Before a peer is ready, it takes all bytes for a part of the handshake.
  #isOpen(stream: Duplex): void {
    if (this.#options.socketType === "SUB")
      for (const piece of zmtpMessage([SUBSCRIBE_TO_ALL])) stream.write(piece);
    this.#ready.resolve(stream);
  }
}

/** Without a waiter, a rejection must not be unhandled. */
function unclaimed(): PromiseWithResolvers<Duplex> {
  const ready = Promise.withResolvers<Duplex>();
  ready.promise.catch(() => undefined);
  return ready;
}

/**
 * The transport to kernels: `zeromq` is the native library, for sandboxes whose ports have an address on the host. It
 * cannot use streams, so other sandboxes use our own client, as with `zmtp`, or where the library does not run.
 */
export async function openTransport(kind: "zmtp" | "zeromq", log: Logger): Promise<OpenKernelChannels> {
  const own: OpenKernelChannels = (options) => new ZmtpChannels(options);
  if (kind === "zmtp") return own;
  const library = await import("./zeromq-channels.js").catch((error: unknown) => {
    log.info({ err: error }, "the zeromq library does not run here; kernels are spoken to without it");
    return undefined;
  });
  if (library === undefined) return own;
  return ({ address, ...options }) =>
    address === undefined ? own(options) : new library.ZeromqChannels({ ...options, address });
}
