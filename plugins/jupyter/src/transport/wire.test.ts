import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { it } from "node:test";
import { decodeMessage, encodeMessage, WireError } from "./wire.js";

const KEY = "a secret";

function framesOf(parts: readonly (string | Buffer)[], key = KEY): Buffer[] {
  const buffers = parts.map((part) => Buffer.from(part));
  const hmac = createHmac("sha256", key);
  for (const part of buffers.slice(0, 4)) hmac.update(part);
  return [Buffer.from("topic"), Buffer.from("<IDS|MSG>"), Buffer.from(hmac.digest("hex")), ...buffers];
}

const HEADER = '{"msg_id": "1", "msg_type": "stream", "date": "2026-01-01T00:00:00Z"}';

it("decoding reverses encoding", async () => {
  const frames = encodeMessage(
    { id: "i", type: "execute_request", session: "s", content: { code: "é" } },
    KEY,
  );
  const message = await decodeMessage(frames, KEY);
  assert.equal(message.id, "i");
  assert.equal(message.type, "execute_request");
  assert.equal(message.parentId, undefined);
  assert.deepEqual(JSON.parse(message.content.toString()), { code: "é" });
});

it("a message keeps its identities, parent and buffers apart", async () => {
  const message = await decodeMessage(
    framesOf([HEADER, '{"msg_id": "0"}', "{}", "{}", Buffer.from([1, 2])]),
    KEY,
  );
  assert.equal(message.parentId, "0");
  assert.deepEqual(message.buffers, [Buffer.from([1, 2])]);
});

it("every changed byte of a signed part, another key and a short signature are refused", async () => {
  for (const text of ["stdout", "x".repeat(3 * 1024 * 1024)]) {
    const frames = framesOf([HEADER, "{}", "{}", JSON.stringify({ name: text })]);
    assert.ok(await decodeMessage(frames, KEY));
    for (const part of [2, 3, 4, 5, 6]) {
      for (const at of [0, -1]) {
        const tampered = frames.map((frame) => Buffer.from(frame));
        const frame = tampered[part];
        assert.ok(frame);
        const index = at < 0 ? frame.length + at : at;
        frame[index] = (frame[index] ?? 0) ^ 1;
        await assert.rejects(decodeMessage(tampered, KEY), new WireError("wrong signature"), `part ${part}`);
      }
    }
    await assert.rejects(decodeMessage(frames, "another"), new WireError("wrong signature"));
    const short = [...frames.slice(0, 2), Buffer.from("ab"), ...frames.slice(3)];
    await assert.rejects(decodeMessage(short, KEY), new WireError("wrong signature"));
  }
});

it("missing frames and unusable headers are refused, never a crash", async () => {
  const whole = framesOf([HEADER, "{}", "{}", "{}"]);
  for (let length = 0; length < whole.length; length++)
    await assert.rejects(decodeMessage(whole.slice(0, length), KEY), WireError);
  for (const header of [
    "",
    "x",
    "null",
    "[]",
    "1",
    "{}",
    '{"msg_id": 1, "msg_type": 2}',
    `{"msg_id": "${"x".repeat(70_000)}", "msg_type": "a"}`,
  ]) {
    await assert.rejects(
      decodeMessage(framesOf([header, "{}", "{}", "{}"]), KEY),
      WireError,
      header.slice(0, 40),
    );
  }
  await assert.rejects(decodeMessage(framesOf([HEADER, "no", "{}", "{}"]), KEY), WireError);
  const parent = await decodeMessage(
    framesOf([HEADER, '{"__proto__": {"msg_id": "x"}, "msg_id": 5}', "{}", "{}"]),
    KEY,
  );
  assert.equal(parent.parentId, undefined);
});

it("a long content is checked on arrival without blocking the event loop", async () => {
  let turns = 0;
  const counting = setInterval(() => turns++, 1);
  const long = `{"data": {"text/plain": "${"é".repeat(4_000_000)}"}}`;
  const message = await decodeMessage(framesOf([HEADER, "{}", "{}", long]), KEY);
  clearInterval(counting);
  assert.ok(turns > 2, `${turns} turns`);
  assert.equal(message.isChecked, true);
  const broken = [long.slice(0, -1), `${long}{`, long.replace("é", "\n")];
  const noText = Buffer.from(long);
  noText[100] = 0xff;
  for (const content of [...broken, noText])
    await assert.rejects(decodeMessage(framesOf([HEADER, "{}", "{}", content]), KEY), WireError);
  const metadata = `{"x": "${"y".repeat(2_000_000)}"}`;
  await assert.rejects(decodeMessage(framesOf([HEADER, "{}", metadata, "{}"]), KEY), WireError);
});
