import assert from "node:assert/strict";
import { once } from "node:events";
import { duplexPair } from "node:stream";
import { it } from "node:test";
import { FrameReader } from "./frame-reader.js";
import type { Frame } from "./frames.js";
import { FrameWriter } from "./frame-writer.js";

it("A frame that nobody waits for goes with the next one, which wakes the agent once, or else soon", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const [near, agent] = duplexPair();
  const writer = new FrameWriter(near);
  const reader = new FrameReader();
  const received = async (): Promise<readonly Frame[]> => {
    agent.resume();
    const [chunk] = (await once(agent, "data")) as [Buffer];
    return [...reader.push(chunk)];
  };
  agent.pause();
  writer.sendLater(1, 7);
  await new Promise(setImmediate);
  assert.equal(agent.readableLength, 0);
  writer.send(2, 8, Buffer.from("next"));
  const together = (await received()).map(({ type, id, payload }) => [type, id, payload.toString()]);
  assert.deepEqual(together, [
    [1, 7, ""],
    [2, 8, "next"],
  ]);
  writer.sendLater(3, 9);
  context.mock.timers.tick(2);
  assert.deepEqual(
    (await received()).map(({ type }) => type),
    [3],
  );
  near.destroy();
  agent.destroy();
});
