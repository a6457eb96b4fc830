import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import type { ConformanceContext } from "./conformance-context.js";

const MEBIBYTE = 2 ** 20;

export interface SlowReader {
  /** Limit of data in transit between the two. */
  readonly mostKiB: number;
  /** KiB written, as the writer reports. */
  readonly writtenKiB: () => Promise<number>;
  /** Takes the writer's next piece; undefined at its end. */
  readonly take: () => Promise<Uint8Array | undefined>;
}

/** Waits without reading until the writer blocks, then reads some and sees it go on. @throws AssertionError */
export async function expectToWait(context: ConformanceContext, reader: SlowReader): Promise<void> {
  let before = -1;
  await context.until("the writer stands still", async () => {
    const last = before;
    before = await reader.writtenKiB();
    await sleep(150);
    return before === last && before > 0;
  });
  assert.ok(before <= reader.mostKiB, `it wrote ${before} KiB that nobody took`);
  for (let taken = 0; taken < before * 1024 + MEBIBYTE;) {
    const piece = await context.within(5_000, "the next piece", reader.take());
    assert.ok(piece, "the output ended early");
    taken += piece.byteLength;
  }
  await context.until("the writer goes on", async () => (await reader.writtenKiB()) > before);
}
