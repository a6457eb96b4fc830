import assert from "node:assert/strict";
import { type Duplex, duplexPair } from "node:stream";
import { describe, it } from "node:test";
import { setImmediate as turn } from "node:timers/promises";
import { fakeClock } from "@coppice/core/testing";
import { Heartbeat } from "./heartbeat.js";
import { zmtpCommand, zmtpGreeting, zmtpMessage, ZmtpReader } from "./zmtp.js";

const INTERVAL_MS = 1000;
/** Longer than a heartbeat and its answer take inside this process. */
const TURNS = 20;

/** A heartbeat, and a kernel whose answers the test controls. */
async function arrange({ answers = true, isSure = false } = {}) {
  const clock = fakeClock();
  const state = { asked: 0, answers, isDue: true, silences: 0 };
  const dialled: Duplex[] = [];
  const serve = async (stream: Duplex): Promise<void> => {
    stream.on("error", () => undefined);
    stream.write(zmtpGreeting());
    const reader = new ZmtpReader({ maxMessageBytes: 1000 });
    for await (const chunk of stream as AsyncIterable<Buffer>) {
      for (const event of reader.read(chunk)) {
        if (event.kind === "greeting") stream.write(zmtpCommand("READY", Buffer.alloc(0)));
        if (event.kind !== "message") continue;
        // The empty frame that a REP socket needs for its reply.
        assert.equal(event.frames[0]?.length, 0);
        state.asked++;
        if (state.answers) for (const piece of zmtpMessage(event.frames)) stream.write(piece);
      }
    }
  };
  const heartbeat = new Heartbeat({
    clock,
    intervalMs: INTERVAL_MS,
    maxMisses: 3,
    dial: async () => {
      const [ours, theirs] = duplexPair();
      dialled.push(ours);
      serve(theirs).catch(() => undefined);
      return ours;
    },
    isSure,
    isDue: () => state.isDue,
    onSilent: () => state.silences++,
  });
  const settle = async (): Promise<void> => {
    for (let count = 0; count < TURNS; count++) await turn();
  };
  await settle();
  assert.equal(state.asked, 1);
  return {
    clock,
    state,
    dialled,
    settle,
    async beats(count: number): Promise<void> {
      for (let beat = 0; beat < count; beat++) {
        await clock.advance(INTERVAL_MS);
        await settle();
      }
    },
    [Symbol.dispose]: () => heartbeat.stop(),
  };
}

describe("a heartbeat", () => {
  it("that stops is reported once, and leaves neither timer nor stream", async () => {
    using kernel = await arrange();
    const { clock, state, dialled } = kernel;
    await kernel.beats(10);
    assert.equal(state.asked, 11);
    state.answers = false;
    // The first beat sends the request that stays without an answer.
    await kernel.beats(3);
    assert.equal(state.silences, 0);
    await kernel.beats(1);
    assert.equal(state.silences, 1);
    assert.equal(clock.pending, 0);
    assert.ok(dialled.every(({ destroyed }) => destroyed));
    await kernel.beats(10);
    assert.deepEqual([state.silences, state.asked, dialled.length], [1, 14, 1]);
  });

  it("resets its count of misses with the next answer", async () => {
    using kernel = await arrange();
    for (let round = 0; round < 3; round++) {
      kernel.state.answers = false;
      await kernel.beats(2);
      kernel.state.answers = true;
      await kernel.beats(1);
    }
    assert.equal(kernel.state.silences, 0);
  });

  it("sends nothing while no answer is due, and counts from zero afterwards", async () => {
    using kernel = await arrange();
    const { state } = kernel;
    state.answers = false;
    await kernel.beats(3);
    state.isDue = false;
    const { asked } = state;
    await kernel.beats(20);
    assert.deepEqual([state.asked, state.silences], [asked, 0]);
    state.isDue = true;
    await kernel.beats(3);
    assert.equal(state.silences, 0);
    await kernel.beats(1);
    assert.equal(state.silences, 1);
  });

  it("is not missed where there was no answer yet", async () => {
    using kernel = await arrange({ answers: false });
    await kernel.beats(20);
    assert.equal(kernel.state.silences, 0);
  });

  it("is missed from the first ping on where the peer is known to answer", async () => {
    using kernel = await arrange({ answers: false, isSure: true });
    await kernel.beats(2);
    assert.equal(kernel.state.silences, 0);
    await kernel.beats(1);
    assert.equal(kernel.state.silences, 1);
  });

  it("goes on over another connection when one is lost", async () => {
    using kernel = await arrange();
    const { state, dialled } = kernel;
    dialled[0]?.destroy();
    const endMs = performance.now() + 10_000;
    while (dialled.length < 2 && performance.now() < endMs) await turn();
    await kernel.beats(10);
    assert.deepEqual([dialled.length, state.silences], [2, 0]);
  });
});
