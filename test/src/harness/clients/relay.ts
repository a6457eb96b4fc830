import { once } from "node:events";
import { type AddressInfo, type Server, type Socket, connect, createServer } from "node:net";

/** Relays connections to a server; `cut` ends all of them. */
export class Relay {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  private constructor(server: Server) {
    this.#server = server;
  }

  static async start(url: string): Promise<Relay> {
    const { hostname, port } = new URL(url);
    const server = createServer((socket) => {
      const onward = connect(Number(port), hostname);
      for (const one of [socket, onward]) {
        relay.#sockets.add(one);
        one.on("error", () => undefined);
        one.once("close", () => relay.#sockets.delete(one));
      }
      socket.pipe(onward).pipe(socket);
    });
    const relay = new Relay(server);
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    return relay;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Ends every connection without a word; new ones are carried as before. */
  cut(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  async close(): Promise<void> {
    this.cut();
    this.#server.close();
    await once(this.#server, "close");
  }
}
