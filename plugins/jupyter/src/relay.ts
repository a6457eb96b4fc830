import { randomBytes } from "node:crypto";
import { createServer, Socket, type Server } from "node:net";
import { join } from "node:path";
import type { Duplex } from "node:stream";
import type { ChannelName } from "./kernel-channels.js";
import { RelayWindow } from "./relay-window.js";
import { release } from "./release.js";

export interface RelayOptions {
  /** A directory that only the server may enter, with a short path. */
  readonly directory: string;
  readonly ports: Readonly<Record<ChannelName, number>>;
  /** Opens a stream to a port inside the sandbox. */
  readonly dial: (port: number, signal: AbortSignal) => Promise<Duplex>;
  /** Told when a connection to a port has ended before the relay was disposed of. */
  readonly onLost: (channel: ChannelName) => void;
}

/** Longest path of a UNIX socket on every system we run on; FreeBSD has the shortest. */
export const LONGEST_SOCKET_PATH = 103;

// A kernel is connected to once, and again when ZeroMQ has lost it.
const CONNECTIONS = 4;

/**
 * Private doors on the host to ports inside a sandbox, one UNIX socket a port. ZeroMQ dials only
 * addresses, and a sandbox gives streams: this stands between, so that every backend serves.
 */
export class Relay implements AsyncDisposable {
  readonly endpoints: Readonly<Record<ChannelName, string>>;
  /** Told by whoever receives messages at an endpoint: the kernel waits where nobody takes them. */
  readonly windows: Readonly<Record<ChannelName, RelayWindow>>;
  readonly #servers: readonly Server[];
  readonly #connections: Set<Duplex>;
  readonly #ended: AbortController;

  private constructor(
    endpoints: Record<ChannelName, string>,
    windows: Record<ChannelName, RelayWindow>,
    servers: readonly Server[],
    connections: Set<Duplex>,
    ended: AbortController,
  ) {
    this.endpoints = endpoints;
    this.windows = windows;
    this.#servers = servers;
    this.#connections = connections;
    this.#ended = ended;
  }

  /** Opens the doors. Nothing is dialled before somebody knocks. */
  static async open({ directory, ports, dial, onLost }: RelayOptions): Promise<Relay> {
    const ended = new AbortController();
    const connections = new Set<Duplex>();
    const windows = {
      shell: new RelayWindow(),
      control: new RelayWindow(),
      stdin: new RelayWindow(),
      iopub: new RelayWindow(),
    };
    const name = randomBytes(6).toString("hex");
    const pathOf = (channel: ChannelName): string => join(directory, `${name}-${channel}`);
    const listen = (channel: ChannelName): Promise<Server> => {
      const server = createServer({ pauseOnConnect: true }, (client) => {
        connections.add(client);
        client.once("close", () => {
          connections.delete(client);
          if (!ended.signal.aborted) onLost(channel);
        });
        // What breaks one end is told by its close.
        client.on("error", () => undefined);
        dial(ports[channel], ended.signal).then(
          (inside) => connect(client, inside, windows[channel]),
          () => client.destroy(),
        );
      });
      server.maxConnections = CONNECTIONS;
      return new Promise((resolve, reject) => {
        server.once("error", reject);
        server.listen(pathOf(channel), () => resolve(server));
      });
    };
    const channels = ["shell", "control", "stdin", "iopub"] as const;
    const settled = await Promise.allSettled(channels.map(listen));
    const servers = settled.flatMap((result) => (result.status === "fulfilled" ? [result.value] : []));
    const endpoints = Object.fromEntries(
      channels.map((channel) => [channel, `ipc://${pathOf(channel)}`]),
    ) as Record<ChannelName, string>;
    const relay = new Relay(endpoints, windows, servers, connections, ended);
    const failure = settled.find((result) => result.status === "rejected");
    if (failure !== undefined) {
      await relay[Symbol.asyncDispose]();
      throw failure.reason;
    }
    return relay;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#ended.abort();
    const closed = this.#servers.map((server) => new Promise((resolve) => server.close(resolve)));
    for (const connection of this.#connections) connection.destroy();
    await Promise.all(closed);
  }
}

/** Carries both ways until either end is gone, then ends the other. */
function connect(client: Socket, inside: Duplex, window: RelayWindow): void {
  window.restart();
  // What breaks one end is told by its close.
  inside.on("error", () => undefined);
  // A request is small: held back for company it costs 40 ms.
  if (inside instanceof Socket) inside.setNoDelay(true);
  for (const carried of [carry(client, inside), carry(inside, client, window)]) {
    void carried
      .catch(() => undefined)
      .then(() => {
        client.destroy();
        inside.destroy();
      });
  }
}

/** To the end of what is read. Rejects when either breaks. */
async function carry(from: Duplex, to: Duplex, window?: RelayWindow): Promise<void> {
  for await (const chunk of from as AsyncIterable<Buffer>) {
    await window?.room();
    window?.passed(chunk.length);
    await settled((done) => to.write(chunk, done));
    release(chunk);
  }
  await settled((done) => to.end(done));
}

function settled(run: (done: (error?: Error | null) => void) => void): Promise<void> {
  return new Promise((resolve, reject) => run((error) => (error ? reject(error) : resolve())));
}
