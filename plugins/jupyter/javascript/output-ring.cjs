"use strict";
// A ring buffer in shared memory for output, from the thread that runs cells to the one that speaks to the server:
// output arrives even during a busy loop, and a cell that prints faster than its reader waits.
const SIZE = 1024 * 1024;
const HEAD = 5;
const MAX_PIECE = 64 * 1024;
// Positions: byte counts that wrap around.
const WRITTEN = 0;
const READ = 1;
const IS_WOKEN = 2;
/** Number of displays that the reader has not taken yet. */
const DISPLAYS = 3;
/** Set by the reader when the server has learned of the process's end. */
const FAREWELL = 4;

function allocate() {
  return {
    control: new Int32Array(new SharedArrayBuffer(32)),
    bytes: new Uint8Array(new SharedArrayBuffer(SIZE)),
  };
}

/** The writing end. `wake` is called when the reader may be asleep. */
function writer({ control, bytes }, wake) {
  function copyIn(data, position) {
    const start = position & (SIZE - 1);
    const first = Math.min(data.length, SIZE - start);
    bytes.set(data.subarray(0, first), start);
    bytes.set(data.subarray(first), 0);
  }

  return {
    get position() {
      return Atomics.load(control, WRITTEN);
    },
    /** Stream 1 is stdout, 2 is stderr. Waits while the ring is full. */
    write(stream, data) {
      for (let at = 0; at < data.length; at += MAX_PIECE) {
        const piece = data.subarray(at, at + MAX_PIECE);
        const position = Atomics.load(control, WRITTEN);
        for (;;) {
          const read = Atomics.load(control, READ);
          if (SIZE - ((position - read) | 0) >= HEAD + piece.length) break;
          // In slices, to let interrupts through.
          Atomics.wait(control, READ, read, 50);
        }
        const head = Buffer.alloc(HEAD);
        head[0] = stream;
        head.writeUInt32LE(piece.length, 1);
        copyIn(head, position);
        copyIn(piece, position + HEAD);
        Atomics.store(control, WRITTEN, (position + HEAD + piece.length) | 0);
        if (Atomics.exchange(control, IS_WOKEN, 1) === 0) wake();
      }
    },
    /** Counts a display; waits while too many are pending. */
    displayed(most) {
      Atomics.add(control, DISPLAYS, 1);
      for (;;) {
        const count = Atomics.load(control, DISPLAYS);
        if (count <= most) return;
        Atomics.wait(control, DISPLAYS, count, 50);
      }
    },
    /** Blocks this thread until the reader sets FAREWELL, or the time is over. */
    awaitFarewell(timeoutMs) {
      Atomics.wait(control, FAREWELL, 0, timeoutMs);
    },
  };
}

function reader({ control, bytes }) {
  function copyOut(position, length) {
    const start = position & (SIZE - 1);
    const first = Math.min(length, SIZE - start);
    const data = Buffer.allocUnsafe(length);
    data.set(bytes.subarray(start, start + first), 0);
    data.set(bytes.subarray(0, length - first), first);
    return data;
  }

  return {
    /** Call it before checking for data: later writes wake the reader again. */
    arm() {
      Atomics.store(control, IS_WOKEN, 0);
    },
    displayTaken() {
      Atomics.sub(control, DISPLAYS, 1);
      Atomics.notify(control, DISPLAYS);
    },
    farewell() {
      Atomics.store(control, FAREWELL, 1);
      Atomics.notify(control, FAREWELL);
    },
    /** The next piece, or undefined when there is none before `until`. */
    read(until = Atomics.load(control, WRITTEN)) {
      const position = Atomics.load(control, READ);
      if (((until - position) | 0) <= 0) return undefined;
      const head = copyOut(position, HEAD);
      const length = Math.min(head.readUInt32LE(1), MAX_PIECE);
      const data = copyOut(position + HEAD, length);
      Atomics.store(control, READ, (position + HEAD + length) | 0);
      Atomics.notify(control, READ);
      return { stream: head[0] === 2 ? "stderr" : "stdout", data };
    },
  };
}

module.exports = { allocate, reader, writer };
