import { connect, type Socket } from "node:net";

/** Sends one request again and again on kept connections, at the least cost: answers have the length of the first one. */
export class RepeatingClient {
  readonly #port: number;
  readonly #request: Buffer;
  readonly #idle: Connection[] = [];
  readonly #all = new Set<Connection>();

  constructor(port: number, host: string) {
    this.#port = port;
    this.#request = Buffer.from(`GET / HTTP/1.1\r\nHost: ${host}\r\n\r\n`);
  }

  /** @throws Error for an answer other than 200. */
  async ask(): Promise<void> {
    const connection = this.#idle.pop() ?? new Connection(this.#port);
    this.#all.add(connection);
    await connection.exchange(this.#request);
    this.#idle.push(connection);
  }

  close(): void {
    for (const connection of this.#all) connection.socket.destroy();
  }
}

class Connection {
  readonly socket: Socket;
  #lengthBytes = Number.NaN;
  #received = 0;
  #answer = Promise.withResolvers<void>();

  constructor(port: number) {
    this.socket = connect({ port, host: "127.0.0.1", noDelay: true });
    this.socket.on("data", (bytes: Buffer) => this.#receive(bytes));
    this.socket.on("error", (error) => this.#answer.reject(error));
    this.socket.on("close", () => this.#answer.reject(new Error("the connection was closed")));
  }

  exchange(request: Buffer): Promise<void> {
    this.#answer = Promise.withResolvers();
    this.#received = 0;
    this.socket.write(request);
    return this.#answer.promise;
  }

  #receive(bytes: Buffer): void {
    if (Number.isNaN(this.#lengthBytes)) {
      const text = bytes.toString("latin1");
      const [head, length] = /^HTTP\/1\.1 200 [^]*?content-length: (\d+)[^]*?\r\n\r\n/i.exec(text) ?? [];
      if (head === undefined) this.socket.destroy(new Error(text));
      else this.#lengthBytes = head.length + Number(length);
    }
    this.#received += bytes.length;
    if (this.#received >= this.#lengthBytes) this.#answer.resolve();
  }
}
