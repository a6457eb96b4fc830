import type { WebSocketRoute } from "../http/surfaces/web-sockets.js";
import type { LiveSandbox } from "../sandbox/model/live-sandbox.js";

const nowhere = { record: { id: "nowhere" }, ended: new AbortController().signal };

/** WebSockets that say one text and are for no sandbox, for tests of what is in front of all. */
export const greetingSocket: WebSocketRoute = {
  maxMessageBytes: 1024,
  pingIntervalMs: 60_000,
  sandboxOf: () => nowhere as unknown as LiveSandbox,
  open: () => (socket) => socket.send("hello"),
};

/** Headers of a request for a WebSocket. */
export const HANDSHAKE = {
  "connection": "Upgrade",
  "upgrade": "websocket",
  "sec-websocket-version": "13",
  "sec-websocket-key": `${"A".repeat(22)}==`,
} as const;
