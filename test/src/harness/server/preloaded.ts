import { openFences } from "@coppice/plugin-fleet/testing";

// Loaded by Node into a server before its own modules: what a test does to the server from inside.

const RealDate = Date;
let shiftMs = 0;

// The wall clock alone, as when somebody sets it: timers and `performance.now()` go on.
globalThis.Date = class extends RealDate {
  constructor(...words: readonly [] | readonly [number | string | Date]) {
    if (words.length === 0) super(RealDate.now() + shiftMs);
    // The types know no constructor with any number of arguments.
    else super(...(words as readonly [number]));
  }

  static override now(): number {
    return RealDate.now() + shiftMs;
  }
} as DateConstructor;

process.on("message", (message: string) => {
  const [, ms] = /^clock (-?\d+)$/.exec(message) ?? [];
  if (ms === undefined) return;
  shiftMs = Number(ms);
  process.send?.(message);
});
// The listener must not keep the server from ending.
process.channel?.unref();

if (process.env["COPPICE_TEST_OPEN_FENCES"] !== undefined) openFences();
