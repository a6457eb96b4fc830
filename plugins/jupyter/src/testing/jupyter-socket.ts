import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { WebSocket } from "ws";

/** A message in JSON framing. */
export interface JsonMessage {
  readonly channel: string;
  readonly header: { readonly msg_id: string; readonly msg_type: string; readonly session: string };
  readonly parent_header: { readonly msg_id?: string };
  readonly content: Readonly<Record<string, unknown>>;
}

/** A raw WebSocket client of a kernel, for misbehaviour that real clients do not allow. */
export class JupyterSocket implements Disposable {
  readonly socket: WebSocket;
  readonly received: JsonMessage[] = [];
  /** Resolves with the close code. */
  readonly closed: Promise<number>;
  readonly #arrivals = new EventTarget();

  private constructor(socket: WebSocket) {
    this.socket = socket;
    const { promise, resolve } = Promise.withResolvers<number>();
    this.closed = promise;
    socket.once("close", resolve);
    socket.on("error", () => undefined);
    socket.on("message", (data: Buffer, isBinary) => {
      if (isBinary) return;
      this.received.push(JSON.parse(data.toString("utf8")) as JsonMessage);
      this.#arrivals.dispatchEvent(new Event("message"));
    });
  }

  /** @throws Error with the status when the server refuses. */
  static async open(url: string, protocols: readonly string[] = []): Promise<JupyterSocket> {
    const socket = new WebSocket(url, [...protocols]);
    const opened = new JupyterSocket(socket);
    await once(socket, "open");
    return opened;
  }

  send(
    type: string,
    content: object,
    { channel = "shell", id = String(randomUUID()), session = "s", parent = {} } = {},
  ): string {
    const header = {
      msg_id: id,
      msg_type: type,
      session,
      username: "",
      date: new Date().toISOString(),
      version: "5.3",
    };
    this.socket.send(JSON.stringify({ channel, header, parent_header: parent, metadata: {}, content }));
    return id;
  }

  execute(code: string, options: object = {}): string {
    return this.send("execute_request", {
      code,
      silent: false,
      store_history: true,
      user_expressions: {},
      allow_stdin: false,
      stop_on_error: false,
      ...options,
    });
  }

  /** The first message, also a future one, for which the condition holds. */
  async find(
    what: string,
    condition: (message: JsonMessage) => boolean,
    timeoutMs = 30_000,
  ): Promise<JsonMessage> {
    const signal = AbortSignal.timeout(timeoutMs);
    for (;;) {
      const found = this.received.find(condition);
      if (found !== undefined) return found;
      if (this.socket.readyState === WebSocket.CLOSED) throw new Error(`${what}: the connection is closed`);
      const arrived = Promise.withResolvers<void>();
      const stop = new AbortController();
      const wake = (): void => arrived.resolve();
      this.#arrivals.addEventListener("message", wake, { once: true, signal: stop.signal });
      this.socket.once("close", wake);
      signal.addEventListener(
        "abort",
        () => arrived.reject(new Error(`${what}: not within ${timeoutMs} ms`)),
        { signal: stop.signal },
      );
      try {
        await arrived.promise;
      } finally {
        stop.abort();
        this.socket.off("close", wake);
      }
    }
  }

  /** The reply to a request, once it is idle, too. */
  async end(id: string): Promise<JsonMessage> {
    await this.find(
      "idle",
      ({ header, parent_header, content }) =>
        header.msg_type === "status" && parent_header.msg_id === id && content["execution_state"] === "idle",
    );
    return this.find(
      "reply",
      ({ header, parent_header }) => parent_header.msg_id === id && header.msg_type.endsWith("_reply"),
    );
  }

  /** Output of a request so far. */
  textOf(id: string, name = "stdout"): string {
    return this.received
      .filter(
        ({ header, parent_header, content }) =>
          header.msg_type === "stream" && parent_header.msg_id === id && content["name"] === name,
      )
      .map(({ content }) => content["text"])
      .join("");
  }

  [Symbol.dispose](): void {
    this.socket.terminate();
  }
}
