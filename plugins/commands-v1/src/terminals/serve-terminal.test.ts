import assert from "node:assert/strict";
import { EventEmitter } from "node:events";
import { it } from "node:test";
import { setImmediate } from "node:timers/promises";
import { queryObjects } from "node:v8";
import type { WebSocket } from "ws";
import { serveTerminal, type ServeTerminalOptions } from "./serve-terminal.js";

it("a terminal that is watched for long keeps nothing of its waits for output", async () => {
  const state: { readyState: number; OPEN: 1 } = { readyState: 1, OPEN: 1 };
  const socket = Object.assign(new EventEmitter(), state);
  let wake = (): void => undefined;
  const page = { pieces: [], nextCursor: 0, command: { phase: "running" } };
  const watched = {
    grown: () => new Promise<void>((resolve) => (wake = resolve)),
    recent: () => page,
    [Symbol.dispose]: () => undefined,
  };
  const options = { from: 0, followers: { watch: () => watched } };
  const served = serveTerminal(socket as unknown as WebSocket, options as unknown as ServeTerminalOptions);
  const waits = async (count: number): Promise<void> => {
    for (let round = 0; round < count; round++) {
      await setImmediate();
      wake();
    }
  };
  await waits(10);
  const before = Number(queryObjects(Promise));
  await waits(1_000);
  const left = Number(queryObjects(Promise)) - before;
  assert.ok(left < 100, `${left} promises are left`);
  await setImmediate();
  socket.readyState = 3;
  socket.emit("close");
  await served;
});
