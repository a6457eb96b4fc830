import { Context, Dealer, Subscriber } from "zeromq";

/** The sockets of a kernel that the server uses. */
export type ChannelName = "shell" | "control" | "stdin" | "iopub";

export interface ChannelsOptions {
  /** A ZeroMQ address for each channel. */
  readonly endpoints: Readonly<Record<ChannelName, string>>;
  /** How the kernel addresses its answers: the id of the session. */
  readonly identity: string;
  /** A larger frame breaks the connection. */
  readonly maxMessageBytes: number;
}

// Messages that wait in this process for their reader. The kernel's side never drops (XPUB_NODROP in
// the launcher), so a full queue here makes the kernel wait; no limit would let a chatty kernel with a
// slow reader fill the server's memory.
const WAITING_MESSAGES = 32;

let shared: Context | undefined;

// Four sockets a kernel: ZeroMQ's own limit of 1023 ends at 255 kernels.
function context(): Context {
  shared ??= new Context({ maxSockets: 32_768, blocky: false });
  return shared;
}

/** A connected set of sockets to one kernel. This is the only place that knows ZeroMQ. */
export class Channels implements Disposable {
  readonly #dealers: Readonly<Record<Exclude<ChannelName, "iopub">, Dealer>>;
  readonly #iopub: Subscriber;
  /** ZeroMQ refuses a second send while one waits. */
  readonly #sending = { shell: Promise.resolve(), control: Promise.resolve(), stdin: Promise.resolve() };

  constructor({ endpoints, identity, maxMessageBytes }: ChannelsOptions) {
    const common = {
      context: context(),
      linger: 0,
      reconnectInterval: 5,
      reconnectMaxInterval: 1000,
      maxMessageSize: maxMessageBytes,
    };
    this.#dealers = {
      shell: new Dealer({ ...common, routingId: identity }),
      control: new Dealer({ ...common, routingId: identity }),
      // The same identity as on shell: a kernel asks for input whoever sent the cell.
      stdin: new Dealer({ ...common, routingId: identity }),
    };
    this.#iopub = new Subscriber({ ...common, receiveHighWaterMark: WAITING_MESSAGES });
    this.#iopub.subscribe();
    this.#iopub.connect(endpoints.iopub);
    this.#dealers.control.connect(endpoints.control);
    this.#dealers.shell.connect(endpoints.shell);
    this.#dealers.stdin.connect(endpoints.stdin);
  }

  /** Hands a message over, in order. Rejects when the channels were closed before it was taken. */
  send(channel: Exclude<ChannelName, "iopub">, frames: readonly Buffer[]): Promise<void> {
    const sent = this.#sending[channel].then(() => this.#dealers[channel].send([...frames]));
    // The next one has its turn whatever became of this one.
    this.#sending[channel] = sent.catch(() => undefined);
    return sent;
  }

  /** Messages as they are pulled; ends when the channels are closed. One reader per channel. */
  receive(channel: ChannelName): AsyncIterable<readonly Buffer[]> {
    return channel === "iopub" ? this.#iopub : this.#dealers[channel];
  }

  close(): void {
    for (const socket of [...Object.values(this.#dealers), this.#iopub]) {
      if (!socket.closed) socket.close();
    }
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
