import { Semaphore } from "@coppice/core";
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
  #isClosed = false;
  /** ZeroMQ refuses a second send while one waits. */
  readonly #sending = { shell: new Semaphore(), control: new Semaphore(), stdin: new Semaphore() };

  constructor({ identity, maxMessageBytes, address, ports, onLost }: ZeromqChannelsOptions) {
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
    this.#dealers = {
      shell: new Dealer({ ...common, routingId: identity }),
      control: new Dealer({ ...common, routingId: identity }),
      // The same identity as on shell: a kernel sends its input requests to the sender of the cell.
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
    return this.#sending[channel].run(() => this.#dealers[channel].send([...frames]));
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
