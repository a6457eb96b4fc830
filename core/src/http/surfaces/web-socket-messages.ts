import type { WebSocket } from "ws";
import { SandboxError } from "../../kernel/errors.js";
import { isTurnOver, laterTurn } from "../../kernel/turns.js";
import type { LiveSandbox } from "../../sandbox/model/live-sandbox.js";

/** Codes of RFC 6455, 7.4.1. */
export const CloseCode = {
  Normal: 1000,
  GoingAway: 1001,
  InvalidData: 1007,
  InternalError: 1011,
  TryAgain: 1013,
} as const;

/**
 * Passes messages on, one after the other, as fast as `take` resolves and in turn with those of other sandboxes. One that it refuses as invalid closes the
 * WebSocket; other errors of `take` are ignored: they mean that its program has ended, which its output reports.
 */
export function takeMessages(
  socket: WebSocket,
  sandbox: LiveSandbox,
  take: (message: Buffer, isBinary: boolean) => Promise<void>,
): void {
  let last = Promise.resolve();
  let waiting = 0;
  socket.on("message", (message: Buffer, isBinary: boolean) => {
    waiting += 1;
    // Messages that were already received still arrive: at most one buffer of them.
    socket.pause();
    last = last
      .then(async () => {
        if (isTurnOver()) await laterTurn(sandbox);
        await take(message, isBinary);
      })
      .catch((error: unknown) => {
        if (error instanceof SandboxError && error.code === "invalid_argument")
          socket.close(CloseCode.InvalidData, error.message);
      })
      .finally(() => {
        waiting -= 1;
        if (waiting === 0) socket.resume();
      });
  });
}

/** Resolves when the message was handed on, or the connection is lost: its close follows. */
export function sendMessage(socket: WebSocket, data: string | Uint8Array): Promise<void> {
  return new Promise((resolve) => socket.send(data, { binary: typeof data !== "string" }, () => resolve()));
}
