import assert from "node:assert/strict";
import { it } from "node:test";
import { setImmediate as turn } from "node:timers/promises";
import { PayloadWriter, Reply } from "./frames.js";
import { InputWindow } from "./input-window.js";
import { StagedWrite } from "../files/staged-write.js";

/** More than one message carries. */
const WINDOW_BYTES = 100_000;

it("concurrent writes are sent whole, in the order of the calls, within the window", async () => {
  let posted = "";
  let underWay = 0;
  const input = new InputWindow((data) => {
    posted += Buffer.from(data).toString();
    underWay += data.byteLength;
    assert.ok(underWay <= WINDOW_BYTES, `${underWay} bytes are unacknowledged`);
  }, WINDOW_BYTES);
  const texts = ["a".repeat(250_000), "b", "c".repeat(120_000)];
  const written = Promise.all(texts.map((text) => input.write(Buffer.from(text))));
  await turn();
  while (posted.length < texts.join("").length) {
    const bytes = underWay;
    assert.ok(bytes > 0, "nothing is sent although there is room");
    underWay = 0;
    input.taken(bytes);
    await turn();
  }
  input.taken(underWay);
  await written;
  // Not assert.equal, which would print all of it.
  assert.ok(posted === texts.join(""), "they are mixed up");
});

it("a file write waits for the agent's acknowledgements", async () => {
  let sentBytes = 0;
  const link = {
    id: 1,
    send: (_type: number, data?: Uint8Array) => void (sentBytes += data?.byteLength ?? 0),
    release: () => undefined,
    canShare: false,
    connection: {},
    takeDescriptor: async () => undefined,
  };
  const file = new StagedWrite(link, "/file", () => assert.fail());
  let isThrough = false;
  const piece = Buffer.alloc(192 * 1024);
  const write = file.write(piece).then(() => {
    isThrough = true;
  });
  await turn();
  assert.ok(sentBytes > 0);
  assert.equal(isThrough, false);
  file.receive(Reply.Taken, Buffer.from(new PayloadWriter().u32(64 * 1024).finish()));
  await write;
  assert.equal(sentBytes, piece.byteLength);
  file.abort();
});
