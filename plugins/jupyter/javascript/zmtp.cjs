"use strict";
// The listening side of ZMTP 3.0 over TCP, reduced to a kernel's needs: no security, and an answer goes back on its
// request's connection. Libraries with native code are no option: the sandbox has only its own Node.js.
const { createServer } = require("node:net");

const GREETING = Buffer.alloc(64);
GREETING[0] = 0xff;
GREETING[9] = 0x7f;
GREETING[10] = 3;
GREETING.write("NULL", 12);

const MORE = 1;
const LONG = 2;
const COMMAND = 4;
// Only the server connects; these limits keep invalid data from filling the memory.
const MAX_FRAME = 256 * 1024 * 1024;
const MAX_FRAMES = 1024;

/**
 * Listens on a free port of the loopback address.
 * @param {"ROUTER" | "PUB" | "REP"} type
 * @param {(frames: Buffer[], peer: { send(frames: Buffer[]): boolean, socket: import("node:net").Socket }) => void} receive
 */
function listen(type, receive) {
  const peers = new Set();
  const server = createServer({ noDelay: true }, (socket) => {
    const peer = {
      socket,
      isReady: false,
      /** False when the peer should not be sent more before its socket drains. */
      send(frames) {
        const parts = frames.flatMap((frame, index) => [
          header(index < frames.length - 1 ? MORE : 0, frame.length),
          frame,
        ]);
        return socket.write(Buffer.concat(parts));
      },
    };
    peers.add(peer);
    socket.on("close", () => peers.delete(peer));
    socket.on("error", () => socket.destroy());
    socket.write(GREETING);
    const parse = parser(type, peer, receive);
    socket.on("data", (data) => {
      try {
        parse(data);
      } catch {
        socket.destroy();
      }
    });
  });
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(0, "127.0.0.1", () => resolve({ port: server.address().port, peers }));
  });
}

function header(flags, size) {
  if (size < 256) return Buffer.from([flags, size]);
  const bytes = Buffer.alloc(9);
  bytes[0] = flags | LONG;
  bytes.writeBigUInt64BE(BigInt(size), 1);
  return bytes;
}

function readyCommand(type) {
  const name = Buffer.from("\x05READY\x0bSocket-Type");
  const value = Buffer.from(type);
  const size = Buffer.alloc(4);
  size.writeUInt32BE(value.length);
  const body = Buffer.concat([name, size, value]);
  return Buffer.concat([header(COMMAND, body.length), body]);
}

/** Parses bytes and calls `receive` for each whole message. */
function parser(type, peer, receive) {
  let chunk;
  let at = 0;
  const steps = parse();
  steps.next();

  function* take(size) {
    const bytes = Buffer.allocUnsafe(size);
    for (let filled = 0; filled < size;) {
      if (at === chunk.length) yield;
      const taken = chunk.copy(bytes, filled, at);
      filled += taken;
      at += taken;
    }
    return bytes;
  }

  function* parse() {
    yield;
    yield* take(GREETING.length);
    peer.socket.write(readyCommand(type));
    let frames = [];
    for (;;) {
      const [flags] = yield* take(1);
      const [short] = flags & LONG ? [] : yield* take(1);
      const size = short ?? Number((yield* take(8)).readBigUInt64BE());
      if (size > MAX_FRAME) throw new Error("a giant frame");
      const body = yield* take(size);
      if (flags & COMMAND) {
        if (body.toString("latin1", 1, 6) === "READY") peer.isReady = true;
        continue;
      }
      frames.push(body);
      if (frames.length > MAX_FRAMES) throw new Error("too many frames");
      if (flags & MORE) continue;
      receive(frames, peer);
      frames = [];
    }
  }

  return (data) => {
    chunk = data;
    at = 0;
    steps.next();
  };
}

module.exports = { listen };
