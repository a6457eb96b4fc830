import assert from "node:assert/strict";
import { it } from "node:test";
import { SeededRandom } from "@coppice/core/testing";
import {
  DATA_START_BYTES,
  SEGMENT_MAGIC,
  type SegmentRecord,
  decodeRecord,
  encodeRecord,
  recordBytes,
  writeDataFields,
  writeHead,
} from "./segment-codec.js";
import { SegmentIndex } from "./segment-index.js";

const start: SegmentRecord = {
  kind: "start",
  number: 7,
  id: "0190a5f0-0000-7000-8000-000000000000",
  pid: 4711,
  path: "/bin/sh",
  tag: "naïve",
  startedAtMs: 1_700_000_000_000.5,
  offset: 2 ** 40,
};
const ends: readonly SegmentRecord[] = [
  { kind: "end", number: 7, offset: 3, end: { exit: { code: 43 }, outcome: "error", endedAtMs: 5 } },
  {
    kind: "end",
    number: 0,
    offset: 0,
    end: { exit: { signal: "SIGSEGV", coreDumped: true }, outcome: "error", endedAtMs: 5 },
  },
  { kind: "end", number: 0, offset: 0, end: { exit: undefined, outcome: "killed", endedAtMs: 5 } },
];

const SEED = 12;

function encode(record: SegmentRecord): Buffer {
  if (record.kind !== "data") return encodeRecord(record, SEED);
  const bytes = Buffer.alloc(DATA_START_BYTES);
  writeDataFields(bytes, record);
  writeHead(bytes, { kind: "data", seed: SEED, data: record.data });
  return Buffer.concat([bytes, record.data]);
}

it("a record is read as it was written, wherever it stands", () => {
  const data: SegmentRecord[] = (["stdout", "stderr", "terminal"] as const).map((stream, number) => ({
    kind: "data",
    number,
    stream,
    offset: Number.MAX_SAFE_INTEGER,
    atMs: 1.5,
    data: Buffer.from([0, 1, 2, 255]),
  }));
  for (const record of [start, ...ends, ...data]) {
    const bytes = Buffer.concat([Buffer.from("before"), encode(record), Buffer.from("after")]);
    assert.deepEqual(decodeRecord(bytes, 6, SEED), record);
    assert.equal(recordBytes(bytes, 6), bytes.length - 11);
  }
});

it("a record with a missing or wrong byte is invalid", () => {
  const data = Buffer.from("some output");
  const record: SegmentRecord = { kind: "data", number: 1, stream: "stdout", offset: 0, atMs: 0, data };
  for (const whole of [encode(record), encode(start)]) {
    for (let length = 0; length < whole.length; length += 1) {
      assert.equal(decodeRecord(whole.subarray(0, length), 0, SEED), undefined, `cut after ${length} bytes`);
      const zeroed = Buffer.concat([whole.subarray(0, length), Buffer.alloc(whole.length - length)]);
      if (!zeroed.equals(whole))
        assert.equal(decodeRecord(zeroed, 0, SEED), undefined, `zeros after ${length}`);
      const damaged = Buffer.from(whole);
      damaged.writeUInt8(damaged.readUInt8(length) ^ 0x10, length);
      assert.equal(decodeRecord(damaged, 0, SEED), undefined, `byte ${length} is wrong`);
    }
  }
});

it("a record of another segment is invalid", () => {
  const data = Buffer.alloc(100_000, "output");
  for (const record of [
    start,
    ...ends,
    { ...start, kind: "data", stream: "stdout", atMs: 0, data } as const,
  ]) {
    assert.equal(decodeRecord(encode(record), 0, SEED)?.kind, record.kind);
    for (const other of [SEED - 1, SEED + 1, SEED + 2 ** 31]) {
      assert.equal(decodeRecord(encode(record), 0, other), undefined);
    }
  }
});

it("a large record with a missing block is invalid", () => {
  const data = Buffer.alloc(100_000, "output");
  const whole = encode({ kind: "data", number: 1, stream: "stdout", offset: 0, atMs: 0, data });
  for (let at = 0; at < whole.length; at += 4096) {
    const lost = Buffer.from(whole).fill(0, at, Math.min(at + 4096, whole.length));
    assert.equal(decodeRecord(lost, 0, SEED), undefined, `the block at ${at} is lost`);
    assert.equal(
      decodeRecord(Buffer.from(whole).fill(0, at), 0, SEED),
      undefined,
      `everything from ${at} on`,
    );
  }
  assert.equal(decodeRecord(whole, 0, SEED)?.kind, "data");
});

it("random bytes are no records and break nothing; damage ends the reading, never misleads it", () => {
  const random = new SeededRandom(20_260_101);
  const below = (limit: number): number => random.below(limit);
  const noise = (length: number): Buffer => Buffer.from(Array.from({ length }, () => below(256)));
  for (let round = 0; round < 2000; round += 1) {
    const bytes = noise(below(100));
    const at = below(bytes.length + 2);
    assert.equal(decodeRecord(bytes, at, SEED), undefined);
    assert.equal(SegmentIndex.parse(bytes), undefined);
  }
  for (let round = 0; round < 300; round += 1) {
    const written = Array.from({ length: 1 + below(12) }, (_, number): SegmentRecord => {
      const kind = below(3);
      if (kind === 0) return { ...start, number };
      if (kind === 1) return ends[below(ends.length)] ?? start;
      return { kind: "data", number, stream: "stdout", offset: below(1e9), atMs: 1, data: noise(below(60)) };
    });
    const bytes = Buffer.concat(written.map(encode));
    const damagedAt = below(bytes.length);
    bytes.writeUInt8(bytes.readUInt8(damagedAt) ^ (1 + below(255)), damagedAt);
    const read: SegmentRecord[] = [];
    for (let at = 0; ;) {
      const record = decodeRecord(bytes, at, SEED);
      if (record === undefined) break;
      read.push(record);
      at += recordBytes(bytes, at) ?? 0;
    }
    assert(read.length < written.length, "the damage was noticed");
    assert.deepEqual(read, written.slice(0, read.length));
  }
});

it("an index survives its file form and finds the record to begin with", () => {
  const index = new SegmentIndex(SEGMENT_MAGIC.length);
  let position = SEGMENT_MAGIC.length;
  const add = (record: Parameters<SegmentIndex["add"]>[0], bytes: number): void => {
    index.add(record, position, position + bytes);
    position += bytes;
  };
  add({ ...start, number: 0, offset: 100 }, 50);
  for (let piece = 0; piece < 64; piece += 1) {
    add({ kind: "data", number: 0, offset: 100 + piece * 65_536, length: 65_536 }, 65_566);
    add({ kind: "data", number: 1, offset: 0, length: 1 }, 31);
  }
  add({ kind: "end", number: 0, offset: 1e9, end: { exit: { code: 0 }, outcome: "ok", endedAtMs: 9 } }, 60);

  const read = SegmentIndex.parse(index.toJson());
  assert(read !== undefined);
  assert.equal(read.endsAt, position);
  assert.deepEqual([...read.commands()], [...index.commands()]);
  const [command] = read.commands();
  assert.equal(read.size, 1, "a command that was never introduced is not there");
  assert.deepEqual([command?.first, command?.next, command?.outputBytes], [100, 100 + 64 * 65_536, 1e9]);
  assert.deepEqual(command?.end, { exit: { code: 0 }, outcome: "ok", endedAtMs: 9 });
  for (const offset of [0, 100, 70_000, 3_000_000]) {
    const from = read.positionOf(0, offset) ?? -1;
    const exact = SEGMENT_MAGIC.length + 50 + Math.max(0, Math.floor((offset - 100) / 65_536)) * 65_597;
    assert(from <= exact && exact - from <= 2 * 256 * 1024, `offset ${offset}: ${from}, exactly ${exact}`);
  }
  assert.equal(read.positionOf(0, command?.next ?? 0), undefined);
  assert.equal(read.positionOf(1, 0), undefined);
});
