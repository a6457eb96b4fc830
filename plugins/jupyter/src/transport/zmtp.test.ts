import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { SeededRandom } from "@coppice/core/testing";
import {
  zmtpCommand,
  ZmtpError,
  type ZmtpEvent,
  zmtpGreeting,
  zmtpMessage,
  zmtpReady,
  ZmtpReader,
} from "./zmtp.js";

const LIMITS = { maxMessageBytes: 300_000 };

function readerAfterGreeting(): ZmtpReader {
  const reader = new ZmtpReader(LIMITS);
  assert.deepEqual([...reader.read(zmtpGreeting())], [{ kind: "greeting" }]);
  return reader;
}

/** All messages that a reader returns for bytes which arrive in pieces of any size. */
function readInPieces(reader: ZmtpReader, bytes: Buffer, random: SeededRandom): readonly ZmtpEvent[] {
  const events: ZmtpEvent[] = [];
  for (let at = 0; at < bytes.length;) {
    const end = at + 1 + random.below(random.of([2, 100, 70_000]));
    events.push(...reader.read(bytes.subarray(at, end)));
    at = end;
  }
  return events;
}

describe("input of a ZMTP peer", () => {
  it("is the same however it is split", () => {
    const random = new SeededRandom(23);
    for (let round = 0; round < 300; round++) {
      const sent = Array.from({ length: 1 + random.below(4) }, () =>
        Array.from({ length: 1 + random.below(8) }, () =>
          Buffer.alloc(random.of([0, 1, 255, 256, random.below(9000), 66_000]) % 35_000, round),
        ),
      );
      const bytes = Buffer.concat([
        zmtpGreeting(),
        zmtpReady("DEALER", "somebody"),
        ...sent.flatMap((frames) => zmtpMessage(frames)),
      ]);
      const [greeting, ready, ...messages] = readInPieces(new ZmtpReader(LIMITS), bytes, random);
      assert.deepEqual(greeting, { kind: "greeting" });
      assert.ok(ready?.kind === "command" && ready.name === "READY");
      assert.ok(ready.body.includes("\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\x08somebody"));
      assert.deepEqual(
        messages,
        sent.map((frames) => ({ kind: "message", frames })),
        `round ${round}`,
      );
    }
  });

  it("is refused with the first invalid byte", () => {
    const changed = (at: number, byte: number): Buffer => {
      const greeting = zmtpGreeting();
      greeting[at] = byte;
      return greeting;
    };
    const greetings = [
      changed(0, 0),
      changed(9, 0),
      changed(10, 2),
      changed(12, 0x4d),
      Buffer.alloc(64, "GET / "),
    ];
    for (const greeting of greetings) {
      assert.throws(() => [...new ZmtpReader(LIMITS).read(greeting)], ZmtpError);
    }
    const announced = (size: bigint, flags = 2): Buffer => {
      const header = Buffer.alloc(9, flags);
      header.writeBigUInt64BE(size, 1);
      return header;
    };
    const bad = {
      "a frame over the limit": announced(300_001n),
      "the largest size there is": announced(2n ** 64n - 1n),
      "a long command": announced(4097n, 6),
      "frames that are too long together": Buffer.concat([
        ...zmtpMessage([Buffer.alloc(250_000), Buffer.alloc(0)]).slice(0, -1),
        announced(50_001n),
      ]),
      "too many frames": Buffer.alloc(2 * 1025, Buffer.from([1, 0])),
      "unknown flags": Buffer.from([8, 0]),
      "a command in pieces": Buffer.from([5, 1, 0]),
      "a command within a message": Buffer.concat([
        Buffer.from([1, 0]),
        zmtpCommand("PING", Buffer.alloc(2)),
      ]),
      "a command without a name": Buffer.from([4, 1, 0]),
      "a command that ends within its name": Buffer.from([4, 2, 9, 65]),
    };
    for (const [what, bytes] of Object.entries(bad)) {
      assert.throws(() => [...readerAfterGreeting().read(bytes)], ZmtpError, what);
    }
  });

  it("yields nothing while it is incomplete", () => {
    const whole = Buffer.concat(zmtpMessage([Buffer.from("ab"), Buffer.alloc(300, 1)]));
    for (let length = 0; length < whole.length; length++) {
      assert.deepEqual([...readerAfterGreeting().read(whole.subarray(0, length))], []);
    }
  });

  it("may be random: it is read or refused, and never more than was sent", () => {
    const random = new SeededRandom(7);
    let refused = 0;
    for (let round = 0; round < 5000; round++) {
      const bytes = Buffer.concat([
        random.of([zmtpGreeting(), zmtpGreeting(), random.bytes(64)]),
        ...zmtpMessage([random.bytes(random.below(40)), random.bytes(random.below(40))]),
        random.bytes(random.below(200)),
      ]);
      for (let flips = random.below(4); flips > 0; flips--)
        bytes[random.below(bytes.length)] = random.below(256);
      try {
        const events = readInPieces(new ZmtpReader(LIMITS), bytes, random);
        const told = events.flatMap((event) => (event.kind === "message" ? event.frames : []));
        assert.ok(told.reduce((sum, frame) => sum + frame.length, 0) <= bytes.length);
      } catch (error) {
        assert.ok(error instanceof ZmtpError, String(error));
        refused++;
      }
    }
    assert.ok(refused > 1000 && refused < 5000, `${refused} were refused`);
  });
});
