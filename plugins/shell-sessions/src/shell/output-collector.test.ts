import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { Spool } from "@coppice/core";
import { SeededRandom } from "@coppice/core/testing";
import { OutputCollector } from "./output-collector.js";

const MiB = 2 ** 20;
const UNLIMITED = { maxBytes: 64 * MiB };

describe("collected output", () => {
  let directory: string;
  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-collected-"));
  });
  after(() => rm(directory, { recursive: true }));

  const spoolOf = (maxBytes: number): Spool =>
    new Spool({ directory: () => join(directory, "spool"), maxBytes });
  /** All room of the spool is free. */
  const assertEmpty = async (spool: Spool, maxBytes: number): Promise<void> => {
    await using file = await spool.open();
    await file.write(Buffer.alloc(maxBytes));
  };
  const random = new SeededRandom(17);
  const pattern = random.bytes(10_007);
  const bytesOf = (length: number): Buffer => Buffer.alloc(length, pattern);

  it("of a small command takes no file", async () => {
    const spool = spoolOf(MiB);
    spool.open = () => assert.fail("a file was opened");
    const collector = new OutputCollector({ ...UNLIMITED, spool });
    const bytes = bytesOf(1_000_000);
    for (const stream of ["stdout", "stderr"] as const)
      assert.equal(collector.add({ stream, data: bytes }), undefined);
    await using output = await collector.result();
    assert.ok((await output.stdout.join()).equals(bytes));
    assert.ok((await output.stderr.join()).equals(bytes));
  });

  it("is truncated when there is more than the limit of a stream, and not when there is as much", async () => {
    for (const [bytes, isTruncated] of [
      [1000, false],
      [1001, true],
    ] as const) {
      const collector = new OutputCollector({ maxBytes: 1000 });
      await collector.add({ stream: "stdout", data: bytesOf(bytes) });
      await using output = await collector.result();
      assert.deepEqual([output.truncated, (await output.stdout.join()).length], [isTruncated, 1000]);
    }
  });

  for (const waits of [true, false]) {
    it(`is in order, whatever its pieces are, also when nobody ${waits ? "reads it yet" : "waits for room"}`, async () => {
      const spool = spoolOf(32 * MiB);
      const collector = new OutputCollector({ ...UNLIMITED, spool });
      const expected: Record<"stdout" | "stderr", Buffer[]> = { stdout: [], stderr: [] };
      let waited = 0;
      for (let count = 0; count < 500; count++) {
        const stream = count % 3 === 0 ? "stderr" : "stdout";
        const data = random.bytes(random.below(20_000));
        expected[stream].push(Buffer.from(data));
        const room = collector.add({ stream, data });
        // The caller's own memory, which the next output overwrites.
        data.fill(0);
        if (room !== undefined) waited++;
        if (waits) await room;
      }
      assert.ok(waited > 0, "the disk was never waited for");
      const output = await collector.result();
      assert.equal(output.truncated, false);
      for (const stream of ["stdout", "stderr"] as const) {
        const bytes = Buffer.concat(expected[stream]);
        assert.ok((await output[stream].join()).equals(bytes), stream);
        const last = bytes.at(-1) ?? 0;
        const changed = output[stream].withoutLast(last).with(Buffer.from("more"));
        assert.ok((await changed.join()).equals(Buffer.concat([bytes.subarray(0, -1), Buffer.from("more")])));
      }
      await output[Symbol.asyncDispose]();
      await assertEmpty(spool, 32 * MiB);
    });
  }

  it("is cut where the server has no room, and keeps what came before", async () => {
    const bytes = bytesOf(8 * MiB);
    const broken = join(directory, "file");
    await writeFile(broken, "");
    const full = spoolOf(2 * MiB);
    for (const [spool, leastBytes] of [
      [full, 2 * MiB],
      [new Spool({ directory: () => broken, maxBytes: 64 * MiB }), MiB],
    ] as const) {
      const collector = new OutputCollector({ ...UNLIMITED, spool });
      for (let at = 0; at < bytes.length; at += 50_000) {
        await collector.add({ stream: "stdout", data: bytes.subarray(at, at + 50_000) });
      }
      await collector.add({ stream: "stderr", data: Buffer.from("e") });
      assert.equal(collector.isFull, false);
      await using output = await collector.result();
      const kept = await output.stdout.join();
      assert.equal(output.truncated, true);
      assert.equal(String(await output.stderr.join()), "e");
      assert.ok(kept.length >= leastBytes && kept.length < 5 * MiB, `${kept.length} bytes`);
      assert.ok(kept.equals(bytes.subarray(0, kept.length)));
    }
    await assertEmpty(full, 2 * MiB);
  });

  it("that nobody wants leaves nothing, not even while it is written", async () => {
    const spool = spoolOf(8 * MiB);
    const collector = new OutputCollector({ ...UNLIMITED, spool });
    void collector.add({ stream: "stdout", data: Buffer.alloc(4 * MiB) });
    await collector[Symbol.asyncDispose]();
    await assertEmpty(spool, 8 * MiB);
  });
});
