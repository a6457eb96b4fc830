import assert from "node:assert/strict";
import { it } from "node:test";
import { SeededRandom } from "@coppice/core/testing";
import {
  decodeFrame,
  encodeFrame,
  FrameError,
  isJsonObject,
  type ClientFrame,
  type Framing,
  type ServerFrame,
} from "./client-frame.js";

const FRAMINGS: readonly Framing[] = ["v1", "json"];

function frameOf(buffers: readonly Buffer[] = []): ServerFrame {
  const header = { msg_id: "id\u0001é", msg_type: "comm_msg", session: "s" };
  return {
    channel: "iopub",
    id: header.msg_id,
    type: header.msg_type,
    session: header.session,
    header: Buffer.from(JSON.stringify(header)),
    parentHeader: Buffer.from("{}"),
    metadata: Buffer.from('{"m": 1.0}'),
    content: Buffer.from('{"big": 12345678901234567890, "x": "é😀\\u0000"}'),
    buffers,
  };
}

async function decode(data: Buffer, framing: Framing, isBinary: boolean): Promise<ClientFrame | undefined> {
  try {
    return await decodeFrame(data, { framing, isBinary });
  } catch (error) {
    assert.ok(error instanceof FrameError, String(error));
    return undefined;
  }
}

it("encoding and decoding preserve every byte in either framing", async () => {
  for (const framing of FRAMINGS) {
    for (const buffers of [[], [Buffer.alloc(0)], [Buffer.from([0, 255, 34]), Buffer.alloc(70_000, 7)]]) {
      const frame = frameOf(buffers);
      const { data, isBinary } = encodeFrame(frame, framing);
      const read = await decodeFrame(data, { framing, isBinary });
      assert.equal(read.channel, "iopub");
      assert.equal(read.id, frame.id);
      for (const part of ["header", "parentHeader", "metadata", "content"] as const)
        assert.ok(read[part].equals(frame[part]), `${framing} ${part}`);
      assert.deepEqual(
        read.buffers.map((buffer) => buffer.toString("hex")),
        buffers.map((buffer) => buffer.toString("hex")),
      );
    }
  }
});

it("JSON has the fields that clients look for", () => {
  const { data } = encodeFrame(frameOf(), "json");
  const message = JSON.parse(data.toString()) as Record<string, unknown>;
  assert.deepEqual(Object.keys(message).sort(), [
    "buffers",
    "channel",
    "content",
    "header",
    "metadata",
    "msg_id",
    "msg_type",
    "parent_header",
  ]);
  assert.equal(message["msg_id"], "id\u0001é");
});

it("a client's JSON may leave out what has a default", async () => {
  const read = await decodeFrame(
    Buffer.from('{"header": {"msg_id": "1", "msg_type": "t"}, "parent_header": null}'),
    { framing: "json", isBinary: false },
  );
  assert.equal(read.channel, "shell");
  assert.equal(read.parentHeader.toString(), "{}");
  assert.equal(read.session, undefined);
});

it("an invalid message is refused", async () => {
  const texts = [
    "",
    "null",
    "[]",
    "{",
    '{"header": 1}',
    '{"header": {}}',
    '{"header": {"msg_id": 1, "msg_type": "t"}}',
    '{"header": {"msg_id": "", "msg_type": "t"}}',
    '{"header": {"msg_id": "1", "msg_type": "t"}, "content": []}',
    `{"header": {"msg_id": "${"x".repeat(300)}", "msg_type": "t"}}`,
    `{"header": {"msg_id": "1", "msg_type": "t", "x": "${"x".repeat(70_000)}"}}`,
    `{"header": {"msg_id": "1", "msg_type": "t"}, "content": ${'{"a":'.repeat(600)}1${"}".repeat(600)}}`,
    '{"header": {"msg_id": "1", "msg_type": "t"}} {}',
  ];
  for (const text of texts)
    assert.equal(await decode(Buffer.from(text), "json", false), undefined, text.slice(0, 80));
  assert.equal(await decode(Buffer.from([0x7b, 0xff, 0x7d]), "json", false), undefined);
  assert.equal(
    await decode(encodeFrame(frameOf(), "v1").data, "v1", false),
    undefined,
    "text under the binary subprotocol",
  );
  for (const framing of FRAMINGS) {
    for (const size of [0, 1, 3, 4, 7, 8, 16, 100]) {
      assert.equal(await decode(Buffer.alloc(size), framing, true), undefined);
      assert.equal(await decode(Buffer.alloc(size, 0xff), framing, true), undefined);
    }
  }
});

it("mutated frames are refused, or are whole messages", async () => {
  const random = new SeededRandom(11);
  for (let round = 0; round < 20_000; round++) {
    const framing = FRAMINGS[random.below(2)] ?? "v1";
    const { data, isBinary } = encodeFrame(
      frameOf(random.below(2) === 0 ? [] : [Buffer.from("buffer"), Buffer.from("x")]),
      framing,
    );
    let mutilated = Buffer.from(data);
    for (let change = random.below(3); change >= 0; change--) {
      const at = random.below(mutilated.length);
      if (random.below(4) === 0) mutilated = mutilated.subarray(0, at + 1);
      else if (random.below(3) === 0)
        mutilated = Buffer.concat([mutilated.subarray(0, at), mutilated.subarray(at + 1 + random.below(9))]);
      else mutilated[at] = random.below(256);
      if (mutilated.length === 0) break;
    }
    const read = await decode(mutilated, framing, isBinary);
    if (read === undefined) continue;
    assert.ok(read.id.length > 0 && read.type.length > 0);
    for (const part of [read.header, read.parentHeader, read.metadata, read.content])
      assert.equal(typeof JSON.parse(part.toString("utf8")), "object");
    const size = [read.header, read.content, read.metadata, ...read.buffers].reduce(
      (sum, { length }) => sum + length,
      0,
    );
    assert.ok(size <= mutilated.length + 6, "no part is larger than the frame");
  }
});

it("a part that would forge another member is no JSON object", () => {
  for (const part of ['{}, "channel": "control"', "{} {}", "[]", '"x"', '{"a": NaN}', "{\"a\": '1'}"])
    assert.equal(isJsonObject(Buffer.from(part)), false, part);
  assert.equal(
    isJsonObject(Buffer.from([0x7b, 0x22, 0xc3, 0x22, 0x3a, 0x31, 0x7d])),
    false,
    "half a character",
  );
  assert.equal(isJsonObject(Buffer.from(' {"a": [1.0, {}]} ')), true);
});

it("a message with very many values or much JSON is refused unread, and large buffers are not", async () => {
  const header = Buffer.from(JSON.stringify({ msg_id: "1", msg_type: "comm_msg" }));
  const decoded = (content: string, framing: Framing): Promise<ClientFrame | undefined> => {
    const frame = { ...frameOf([Buffer.alloc(5_000_000)]), header, content: Buffer.from(content) };
    const { data, isBinary } = encodeFrame(frame, framing);
    return decode(data, framing, isBinary);
  };
  for (const framing of FRAMINGS) {
    assert.equal(await decoded(`{"a":[${"[],".repeat(20_000)}[]]}`, framing), undefined);
    assert.equal(await decoded(`{"a":"${"a".repeat(5_000_000)}"}`, framing), undefined);
    assert.equal((await decoded(`{"a":[${"1,".repeat(5000)}1]}`, framing))?.buffers[0]?.length, 5_000_000);
  }
});
