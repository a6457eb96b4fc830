import assert from "node:assert/strict";
import { EventEmitter } from "node:events";
import { it } from "node:test";
import type { WebSocket } from "ws";
import { SocketClient, type SocketClientOptions } from "./request-sockets.js";

it("a client that takes no refusals is not read until it does", async () => {
  const taken: (() => void)[] = [];
  const reading = { isPaused: false };
  const socket = Object.assign(new EventEmitter(), {
    send: (_data: Buffer, _options: object, done: () => void) => void taken.push(done),
    pause: () => (reading.isPaused = true),
    resume: () => (reading.isPaused = false),
  });
  const options = { config: { maxSocketRequests: 3 } } as SocketClientOptions;
  void new SocketClient(socket as unknown as WebSocket, options);
  const states: boolean[] = [];
  for (let count = 0; count < 3; count++) {
    socket.emit("message", Buffer.from("x"), false);
    // A message may wait for a turn of the event loop.
    for (let turn = 0; turn < 5; turn++) await new Promise(setImmediate);
    states.push(reading.isPaused);
  }
  assert.deepEqual(states, [false, false, true]);
  while (reading.isPaused) {
    for (const done of taken.splice(0)) done();
    await new Promise(setImmediate);
  }
});
