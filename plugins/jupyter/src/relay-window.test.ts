import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { setImmediate as turn } from "node:timers/promises";
import { RelayWindow } from "./relay-window.js";

const MESSAGE = [Buffer.alloc(600_000), Buffer.alloc(10)];
const MESSAGE_BYTES = 600_000 + 9 + 10 + 2;

/** A window that does not close ends the test, not the machine. */
const MOST_PIECES = 1000;

/** Passes pieces as a relay does, and counts them. */
function relay(window: RelayWindow, pieceBytes: number) {
  const state = { pieces: 0 };
  void (async () => {
    while (state.pieces < MOST_PIECES) {
      await window.room();
      window.passed(pieceBytes);
      state.pieces++;
      await turn();
    }
  })();
  return state;
}

async function settle(): Promise<void> {
  for (let count = 0; count < 50; count++) await turn();
}

describe("the window of a relay", () => {
  it("closes when more has passed than the reader took, and opens by what it takes", async () => {
    const window = new RelayWindow();
    const state = relay(window, MESSAGE_BYTES);
    await settle();
    assert.equal(state.pieces, 2);
    window.took(MESSAGE);
    await settle();
    assert.equal(state.pieces, 3);
    window.reading();
    window.took(MESSAGE);
    window.reading();
    window.took(MESSAGE);
    await settle();
    assert.equal(state.pieces, 5);
  });

  it("lets a message through that is larger than it, and no more than that", async () => {
    const window = new RelayWindow();
    const state = relay(window, 400_000);
    await settle();
    assert.equal(state.pieces, 3);
    window.reading();
    await settle();
    assert.ok(state.pieces > 10);
    const { pieces } = state;
    window.took([Buffer.alloc(3_000_000)]);
    await settle();
    assert.equal(state.pieces, pieces);
  });

  it("is open for a new connection, whatever was on its way on the last one", async () => {
    const window = new RelayWindow();
    const state = relay(window, 2_000_000);
    await settle();
    assert.equal(state.pieces, 1);
    window.restart();
    await settle();
    assert.equal(state.pieces, 2);
  });
});
