import { once } from "node:events";
import { WebSocket } from "ws";

export interface Received {
  readonly isBinary: boolean;
  readonly data: Buffer;
}

/** A WebSocket and everything that it received. */
export interface WebSocketClient extends AsyncDisposable {
  readonly socket: WebSocket;
  readonly received: readonly Received[];
  /** All received messages, joined. */
  text(): string;
  /** Resolves when the received text matches. @throws Error when the socket closes first. */
  until(pattern: RegExp): Promise<void>;
  readonly closed: Promise<{ readonly code: number; readonly reason: string }>;
}

/** Opens a WebSocket. @throws Error `Unexpected server response: <status>` when it is refused. */
export async function openWebSocket(
  url: string,
  headers: Readonly<Record<string, string>> = {},
): Promise<WebSocketClient> {
  const socket = new WebSocket(url.replace(/^http/, "ws"), { headers });
  const received: Received[] = [];
  socket.on("message", (data: Buffer, isBinary) => received.push({ data, isBinary }));
  const closed = once(socket, "close").then(([code, reason]) => ({
    code: code as number,
    reason: String(reason),
  }));
  closed.catch(() => undefined);
  await once(socket, "open");
  socket.on("error", () => undefined);
  const text = (): string => Buffer.concat(received.map(({ data }) => data)).toString();
  return {
    socket,
    received,
    text,
    closed,
    async until(pattern) {
      while (!pattern.test(text())) {
        const outcome = await Promise.race([once(socket, "message"), closed]);
        if (!Array.isArray(outcome)) {
          throw new Error(`closed with ${outcome.code} after ${JSON.stringify(text())}`);
        }
      }
    },
    async [Symbol.asyncDispose]() {
      socket.terminate();
      await closed;
    },
  };
}
