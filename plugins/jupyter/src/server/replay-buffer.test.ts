import assert from "node:assert/strict";
import { it } from "node:test";
import { ReplayBuffer } from "./client-session.js";
import { syntheticFrame } from "./server-frame.js";
import { ampleRoom } from "../testing/ample-room.js";

const frame = (type: string, text = "") =>
  syntheticFrame({ type, content: { name: "stdout", text }, session: "s", parentHeader: Buffer.from("{}") });

it("output past the limit is left out with one note, answers are kept up to twice the limit", () => {
  const buffer = new ReplayBuffer(8192, ampleRoom().place());
  const fill = () => {
    for (let index = 0; index < 20; index += 1) assert.ok(buffer.add(frame("stream", "x".repeat(1000))));
    assert.ok(buffer.add(frame("execute_reply")));
    const kept = buffer.take();
    assert.ok(kept.length < 10, `${kept.length} are kept`);
    const notices = kept.filter(({ frame: { content } }) => String(content).includes("output missing"));
    assert.equal(notices.length, 1);
    assert.equal(kept.at(-1)?.frame.type, "execute_reply");
  };
  // The next absence has its own limit and its own notice.
  for (let times = 0; times < 2; times += 1) fill();

  let answers = 0;
  while (buffer.add(frame("execute_reply"))) {
    answers += 1;
    assert.ok(answers < 100, "answers are kept without end");
  }
});
