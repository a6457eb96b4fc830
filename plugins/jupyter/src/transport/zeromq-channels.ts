import { type HeldMemory, Semaphore } from "@coppice/core";
import { sizeOf } from "./wire.js";
import { Context, Dealer, Subscriber } from "zeromq";
import type { ChannelName, KernelChannels, KernelChannelsOptions } from "./kernel-channels.js";

/** Messages of a channel that wait for their reader. Output comes in pieces of 512 KiB. */
const WAITING_MESSAGES = 2;

let shared: Context | undefined;

// Four sockets a kernel, and two observers for each: ZeroMQ's own limit of 1023 is reached before the hundredth kernel.
function context(): Context {
  shared ??= new Context({ maxSockets: 32_768, blocky: false });
  return shared;
}

interface ZeromqChannelsOptions extends Omit<KernelChannelsOptions, "dial"> {
  readonly address: string;
}

/** Channels of the ZeroMQ library, which reconnects by itself. The only file that uses it. */
export class ZeromqChannels implements KernelChannels {
  readonly #dealers: Readonly<Record<Exclude<ChannelName, "iopub">, Dealer>>;
  readonly #iopub: Subscriber;
  readonly #held: HeldMemory;
  readonly #unsent: ReturnType<HeldMemory["place"]>;
  #unsentBytes = 0;
  #isClosed = false;
  /** ZeroMQ refuses a second send while one waits. */
  readonly #sending = { shell: new Semaphore(), control: new Semaphore(), stdin: new Semaphore() };

  constructor({ identity, maxMessageBytes, address, ports, held, onLost }: ZeromqChannelsOptions) {
    this.#held = held;
    this.#unsent = held.place();
    const common = {
      context: context(),
      linger: 0,
      reconnectInterval: 5,
      reconnectMaxInterval: 100,
      maxMessageSize: maxMessageBytes,
      // At its limit this end stops reading, without dropping messages, and the kernel waits (XPUB_NODROP in the
      // launcher). Without a limit the library would read on, even without a reader here.
      receiveHighWaterMark: WAITING_MESSAGES,
    };
    // The library deletes the context from what it is given.
    const asking = { ...common, sendHighWaterMark: WAITING_MESSAGES, routingId: identity };
    this.#dealers = {
      shell: new Dealer({ ...asking }),
      control: new Dealer({ ...asking }),
      // The same identity as on shell: a kernel sends its input requests to the sender of the cell.
      stdin: new Dealer({ ...asking }),
    };
    this.#iopub = new Subscriber(common);
    this.#iopub.subscribe();
    for (const channel of ["iopub", "control", "shell", "stdin"] as const) {
      const socket = this.#socket(channel);
      socket.events.on("disconnect", () => {
        if (!this.#isClosed) onLost(channel);
      });
      socket.connect(`tcp://${address}:${ports[channel]}`);
    }
  }

  async send(channel: Exclude<ChannelName, "iopub">, frames: readonly Buffer[]): Promise<void> {
    const bytes = sizeOf(frames);
    this.#unsent.resize((this.#unsentBytes += bytes));
    try {
      await this.#sending[channel].run(() => this.#dealers[channel].send([...frames]));
    } finally {
      this.#unsent.resize((this.#unsentBytes -= bytes));
    }
  }

  async *receive(channel: ChannelName): AsyncGenerator<readonly Buffer[]> {
    let largestBytes = 0;
    for await (const frames of this.#socket(channel)) {
      const bytes = sizeOf(frames);
      largestBytes = Math.max(largestBytes, bytes);
      using unread = this.#held.place();
      // The library does not tell what waits behind it.
      unread.resize(bytes + WAITING_MESSAGES * largestBytes);
      yield frames;
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    for (const socket of [...Object.values(this.#dealers), this.#iopub]) {
      if (!socket.closed) socket.close();
    }
  }

  #socket(channel: ChannelName): Dealer | Subscriber {
    return channel === "iopub" ? this.#iopub : this.#dealers[channel];
  }
}
