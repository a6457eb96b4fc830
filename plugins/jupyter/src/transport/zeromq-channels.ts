import { Context, Dealer, Subscriber } from "zeromq";
import type { ChannelName, KernelChannels, KernelChannelsOptions } from "./kernel-channels.js";

/** Messages of a channel that wait for their reader. Output comes in pieces of 512 KiB. */
const WAITING_MESSAGES = 2;

let shared: Context | undefined;

// Four sockets a kernel, and two to observe each: ZeroMQ's own limit of 1023 ends before the hundredth.
function context(): Context {
  shared ??= new Context({ maxSockets: 32_768, blocky: false });
  return shared;
}

export interface ZeromqChannelsOptions extends Omit<KernelChannelsOptions, "dial"> {
  /** Where the kernel's ports are. */
  readonly address: string;
}

/** The channels of ZeroMQ's own library, which connects by itself. This is the only place that knows it. */
export class ZeromqChannels implements KernelChannels {
  readonly #dealers: Readonly<Record<Exclude<ChannelName, "iopub">, Dealer>>;
  readonly #iopub: Subscriber;
  #isClosed = false;
  /** ZeroMQ refuses a second send while one waits. */
  readonly #sending = { shell: Promise.resolve(), control: Promise.resolve(), stdin: Promise.resolve() };

  constructor({ identity, maxMessageBytes, address, ports, onLost }: ZeromqChannelsOptions) {
    const common = {
      context: context(),
      linger: 0,
      reconnectInterval: 5,
      reconnectMaxInterval: 100,
      maxMessageSize: maxMessageBytes,
      // At its limit this end stops reading, and drops nothing; the kernel's never drops either (XPUB_NODROP in the
      // launcher), but waits. Without a limit the library would read on, whoever does not.
      receiveHighWaterMark: WAITING_MESSAGES,
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
      socket.events.on("disconnect", () => {
        if (!this.#isClosed) onLost(channel);
      });
      socket.connect(`tcp://${address}:${ports[channel]}`);
    }
  }

  send(channel: Exclude<ChannelName, "iopub">, frames: readonly Buffer[]): Promise<void> {
    const sent = this.#sending[channel].then(() => this.#dealers[channel].send([...frames]));
    // The next one has its turn whatever became of this one.
    this.#sending[channel] = sent.catch(() => undefined);
    return sent;
  }

  receive(channel: ChannelName): AsyncIterable<readonly Buffer[]> {
    return this.#socket(channel);
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
