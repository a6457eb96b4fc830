import { connect, type Socket } from "node:net";

/** An answer without its body. */
export interface DrainedAnswer {
  /** Length of the body; includes the chunk framing of a chunked body. */
  readonly bytes: number;
  /** The last bytes of the body, as ASCII. */
  readonly end: string;
}

const BUFFER_BYTES = 1024 * 1024;
const KEPT_BYTES = 256;
const HEAD_END = "\r\n\r\n";
const LAST_CHUNK = "0\r\n\r\n";

/**
 * An HTTP client that reads answers into one buffer, one after the other, on one kept connection. It is small
 * because it shares the machine with the measured server.
 */
export class DrainingClient {
  readonly #port: number;
  readonly #buffer = Buffer.allocUnsafeSlow(BUFFER_BYTES);
  #socket: Socket | undefined;
  #head = "";
  #tail = "";
  #bytes = 0;
  #answered: PromiseWithResolvers<DrainedAnswer> | undefined;

  constructor(port: number) {
    this.#port = port;
  }

  /** @param head of the request, without its end. @throws Error for an answer that is no 200. */
  async exchange(head: readonly string[], body: string | Uint8Array = ""): Promise<DrainedAnswer> {
    this.#head = "";
    this.#tail = "";
    this.#bytes = 0;
    const answered = Promise.withResolvers<DrainedAnswer>();
    this.#answered = answered;
    // A server ends connections that were idle for some seconds.
    if (this.#socket === undefined || this.#socket.destroyed) this.#socket = this.#connect();
    const length = `content-length: ${Buffer.byteLength(body)}`;
    this.#socket.cork();
    this.#socket.write([...head, "host: 127.0.0.1", length, "", ""].join("\r\n"));
    this.#socket.write(body);
    this.#socket.uncork();
    return answered.promise;
  }

  close(): void {
    this.#answered = undefined;
    this.#socket?.destroy();
  }

  #connect(): Socket {
    const callback = (count: number): true => {
      this.#take(this.#buffer.subarray(0, count));
      return true;
    };
    const socket = connect({
      host: "127.0.0.1",
      port: this.#port,
      onread: { buffer: this.#buffer, callback },
    });
    const lost = (): void => this.#answered?.reject(new Error("the connection was closed"));
    return socket.on("error", lost).on("close", lost);
  }

  #take(bytes: Buffer): void {
    let body = bytes;
    if (!this.#head.endsWith(HEAD_END)) {
      const known = this.#head.length;
      const text = this.#head + bytes.toString("latin1");
      const end = text.indexOf(HEAD_END);
      this.#head = end < 0 ? text : text.slice(0, end + HEAD_END.length);
      if (end < 0) return;
      if (!this.#head.startsWith("HTTP/1.1 200")) {
        this.#answered?.reject(new Error(text));
        return;
      }
      body = bytes.subarray(this.#head.length - known);
    }
    this.#bytes += body.length;
    const before = body.length < KEPT_BYTES ? this.#tail : "";
    this.#tail = (before + body.subarray(-KEPT_BYTES).toString("latin1")).slice(-KEPT_BYTES);
    const [, length] = /^content-length: *(\d+)/im.exec(this.#head) ?? [];
    const isWhole = length === undefined ? this.#tail.endsWith(LAST_CHUNK) : this.#bytes === Number(length);
    if (isWhole) this.#answered?.resolve({ bytes: this.#bytes, end: this.#tail });
  }
}
