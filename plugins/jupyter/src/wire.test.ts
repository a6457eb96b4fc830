import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { test } from "node:test";
import { decodeMessage, encodeMessage, WireError } from "./wire.js";

const KEY = "a secret";

function framesOf(parts: readonly (string | Buffer)[], key = KEY): Buffer[] {
  const buffers = parts.map((part) => Buffer.from(part));
  const hmac = createHmac("sha256", key);
  for (const part of buffers.slice(0, 4)) hmac.update(part);
  return [Buffer.from("topic"), Buffer.from("<IDS|MSG>"), Buffer.from(hmac.digest("hex")), ...buffers];
}

const HEADER = '{"msg_id": "1", "msg_type": "stream", "date": "2026-01-01T00:00:00Z"}';

test("what is encoded is read again", () => {
  const frames = encodeMessage(
    { id: "i", type: "execute_request", session: "s", content: { code: "é" } },
    KEY,
  );
  const message = decodeMessage(frames, KEY);
  assert.equal(message.id, "i");
  assert.equal(message.type, "execute_request");
  assert.equal(message.parentId, undefined);
  assert.deepEqual(JSON.parse(message.content.toString()), { code: "é" });
});

test("a message keeps its identities, parent and buffers apart", () => {
  const message = decodeMessage(framesOf([HEADER, '{"msg_id": "0"}', "{}", "{}", Buffer.from([1, 2])]), KEY);
  assert.equal(message.parentId, "0");
  assert.deepEqual(message.buffers, [Buffer.from([1, 2])]);
});

test("every changed byte of a signed part, another key and a short signature are refused", () => {
  const frames = framesOf([HEADER, "{}", "{}", '{"name": "stdout"}']);
  assert.ok(decodeMessage(frames, KEY));
  for (const part of [2, 3, 4, 5, 6]) {
    const tampered = frames.map((frame) => Buffer.from(frame));
    const frame = tampered[part];
    assert.ok(frame);
    frame[0] = (frame[0] ?? 0) ^ 1;
    assert.throws(() => decodeMessage(tampered, KEY), new WireError("wrong signature"), `part ${part}`);
  }
  assert.throws(() => decodeMessage(frames, "another"), new WireError("wrong signature"));
  const short = [...frames.slice(0, 2), Buffer.from("ab"), ...frames.slice(3)];
  assert.throws(() => decodeMessage(short, KEY), new WireError("wrong signature"));
});

test("missing frames and unusable headers are refused, never a crash", () => {
  const whole = framesOf([HEADER, "{}", "{}", "{}"]);
  for (let length = 0; length < whole.length; length++)
    assert.throws(() => decodeMessage(whole.slice(0, length), KEY), WireError);
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
    assert.throws(
      () => decodeMessage(framesOf([header, "{}", "{}", "{}"]), KEY),
      WireError,
      header.slice(0, 40),
    );
  }
  assert.throws(() => decodeMessage(framesOf([HEADER, "no", "{}", "{}"]), KEY), WireError);
  const parent = decodeMessage(
    framesOf([HEADER, '{"__proto__": {"msg_id": "x"}, "msg_id": 5}', "{}", "{}"]),
    KEY,
  );
  assert.equal(parent.parentId, undefined);
});
