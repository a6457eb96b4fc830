import { Context, Dealer, Subscriber } from "zeromq";
import type { ChannelName, KernelChannels, KernelChannelsOptions } from "./kernel-channels.js";
import { Relay } from "./relay.js";
import { release } from "./release.js";

let shared: Context | undefined;

// Four sockets a kernel: ZeroMQ's own limit of 1023 ends at 255 kernels.
function context(): Context {
  shared ??= new Context({ maxSockets: 32_768, blocky: false });
  return shared;
}

/** The channels of ZeroMQ's own library, through a relay. This is the only place that knows it. */
export class ZeromqChannels implements KernelChannels {
  readonly #relay: Relay;
  readonly #dealers: Readonly<Record<Exclude<ChannelName, "iopub">, Dealer>>;
  readonly #iopub: Subscriber;
  /** ZeroMQ refuses a second send while one waits. */
  readonly #sending = { shell: Promise.resolve(), control: Promise.resolve(), stdin: Promise.resolve() };

  /** @param directory only the server may enter it, and its path is short. */
  static async open(directory: string, options: KernelChannelsOptions): Promise<ZeromqChannels> {
    const relay = await Relay.open({ ...options, directory });
    try {
      return new ZeromqChannels(relay, options);
    } catch (error) {
      await relay[Symbol.asyncDispose]();
      throw error;
    }
  }

  private constructor(relay: Relay, { identity, maxMessageBytes }: KernelChannelsOptions) {
    this.#relay = relay;
    const { endpoints } = relay;
    const common = {
      context: context(),
      linger: 0,
      reconnectInterval: 5,
      reconnectMaxInterval: 1000,
      maxMessageSize: maxMessageBytes,
      // Nothing is left behind for want of room here: how much waits is for the relay to say. The kernel's side never
      // drops either (XPUB_NODROP in the launcher), so that a kernel waits for whoever does not read.
      receiveHighWaterMark: 0,
    };
    this.#dealers = {
      shell: new Dealer({ ...common, routingId: identity }),
      control: new Dealer({ ...common, routingId: identity }),
      // The same identity as on shell: a kernel asks for input whoever sent the cell.
      stdin: new Dealer({ ...common, routingId: identity }),
    };
    this.#iopub = new Subscriber(common);
    this.#iopub.subscribe();
    this.#iopub.connect(endpoints.iopub);
    this.#dealers.control.connect(endpoints.control);
    this.#dealers.shell.connect(endpoints.shell);
    this.#dealers.stdin.connect(endpoints.stdin);
  }

  send(channel: Exclude<ChannelName, "iopub">, frames: readonly Buffer[]): Promise<void> {
    const sent = this.#sending[channel].then(() => this.#dealers[channel].send([...frames]));
    // The next one has its turn whatever became of this one.
    this.#sending[channel] = sent.catch(() => undefined);
    return sent;
  }

  async *receive(channel: ChannelName): AsyncGenerator<readonly Buffer[], void, undefined> {
    const socket = channel === "iopub" ? this.#iopub : this.#dealers[channel];
    const window = this.#relay.windows[channel];
    const messages = socket[Symbol.asyncIterator]();
    for (;;) {
      window.reading();
      const next = await messages.next();
      if (next.done === true) return;
      window.took(next.value);
      yield next.value;
    }
  }

  recycle(frame: Buffer): void {
    release(frame);
  }

  async close(): Promise<void> {
    for (const socket of [...Object.values(this.#dealers), this.#iopub]) {
      if (!socket.closed) socket.close();
    }
    await this.#relay[Symbol.asyncDispose]();
  }
}
