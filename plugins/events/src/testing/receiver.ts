import { createServer, type IncomingHttpHeaders, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

export interface Received {
  readonly path: string;
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
}

/** A real HTTP server that records requests and answers as scripted. */
export class Receiver implements AsyncDisposable {
  readonly received: Received[] = [];
  /** Answers a delivery; 204 unless it is replaced. */
  answer: (received: Received, response: ServerResponse) => void = (_received, response) => {
    response.writeHead(204).end();
  };
  readonly #waiting = new Set<() => void>();
  readonly #server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on("data", (chunk: Buffer) => chunks.push(chunk));
    request.on("end", () => {
      const body = Buffer.concat(chunks).toString();
      const received = { path: request.url ?? "", headers: request.headers, body };
      this.received.push(received);
      for (const wake of this.#waiting) wake();
      this.answer(received, response);
    });
  });

  static async start(): Promise<Receiver> {
    const receiver = new Receiver();
    await new Promise<void>((resolve) => receiver.#server.listen(0, "127.0.0.1", resolve));
    return receiver;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async count(wanted: number): Promise<readonly Received[]> {
    while (this.received.length < wanted)
      await new Promise<void>((resolve) => {
        const wake = (): void => {
          this.#waiting.delete(wake);
          resolve();
        };
        this.#waiting.add(wake);
      });
    return this.received;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}
