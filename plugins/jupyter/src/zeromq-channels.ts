import { Context, Dealer, Subscriber } from "zeromq";
import type { ChannelName, KernelChannels, KernelChannelsOptions } from "./kernel-channels.js";
import { Relay } from "./relay.js";
import { release } from "./release.js";

/** Messages that wait for their reader where no relay counts bytes. */
const WAITING_MESSAGES = 4;

let shared: Context | undefined;

// Four sockets a kernel, and two to observe each: ZeroMQ's own limit of 1023 ends before the hundredth.
function context(): Context {
  shared ??= new Context({ maxSockets: 32_768, blocky: false });
  return shared;
}

/**
 * The channels of ZeroMQ's own library: straight to the kernel's ports where these have an address, otherwise through a
 * relay. This is the only place that knows it.
 */
export class ZeromqChannels implements KernelChannels {
  /** Undefined where the library connects by itself. */
  readonly #relay: Relay | undefined;
  readonly #dealers: Readonly<Record<Exclude<ChannelName, "iopub">, Dealer>>;
  readonly #iopub: Subscriber;
  #isClosed = false;
  /** ZeroMQ refuses a second send while one waits. */
  readonly #sending = { shell: Promise.resolve(), control: Promise.resolve(), stdin: Promise.resolve() };

  /** @param directory only the server may enter it, and its path is short. */
  static async open(directory: string, options: KernelChannelsOptions): Promise<ZeromqChannels> {
    if (options.address !== undefined) return new ZeromqChannels(undefined, options);
    const relay = await Relay.open({ ...options, directory });
    try {
      return new ZeromqChannels(relay, options);
    } catch (error) {
      await relay[Symbol.asyncDispose]();
      throw error;
    }
  }

  private constructor(
    relay: Relay | undefined,
    { identity, maxMessageBytes, address, ports, onLost }: KernelChannelsOptions,
  ) {
    this.#relay = relay;
    const common = {
      context: context(),
      linger: 0,
      reconnectInterval: 5,
      reconnectMaxInterval: 1000,
      maxMessageSize: maxMessageBytes,
      // Behind a relay, how much waits is for that to say, which counts bytes. The kernel's side never drops
      // (XPUB_NODROP in the launcher), so that a kernel waits for whoever does not read.
      receiveHighWaterMark: relay === undefined ? WAITING_MESSAGES : 0,
    };
    this.#dealers = {
      shell: new Dealer({ ...common, routingId: identity }),
      control: new Dealer({ ...common, routingId: identity }),
      // The same identity as on shell: a kernel asks for input whoever sent the cell.
      stdin: new Dealer({ ...common, routingId: identity }),
    };
    this.#iopub = new Subscriber(common);
    this.#iopub.subscribe();
    for (const channel of ["iopub", "control", "shell", "stdin"] as const) {
      const socket = this.#socket(channel);
      if (relay === undefined) {
        socket.events.on("disconnect", () => {
          if (!this.#isClosed) onLost(channel);
        });
      }
      socket.connect(relay?.endpoints[channel] ?? `tcp://${address}:${ports[channel]}`);
    }
  }

  send(channel: Exclude<ChannelName, "iopub">, frames: readonly Buffer[]): Promise<void> {
    const sent = this.#sending[channel].then(() => this.#dealers[channel].send([...frames]));
    // The next one has its turn whatever became of this one.
    this.#sending[channel] = sent.catch(() => undefined);
    return sent;
  }

  async *receive(channel: ChannelName): AsyncGenerator<readonly Buffer[], void, undefined> {
    const window = this.#relay?.windows[channel];
    const messages = this.#socket(channel)[Symbol.asyncIterator]();
    for (;;) {
      window?.reading();
      const next = await messages.next();
      if (next.done === true) return;
      window?.took(next.value);
      yield next.value;
    }
  }

  recycle(frame: Buffer): void {
    release(frame);
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    for (const socket of [...Object.values(this.#dealers), this.#iopub]) {
      if (!socket.closed) socket.close();
    }
    await this.#relay?.[Symbol.asyncDispose]();
  }

  #socket(channel: ChannelName): Dealer | Subscriber {
    return channel === "iopub" ? this.#iopub : this.#dealers[channel];
  }
}
