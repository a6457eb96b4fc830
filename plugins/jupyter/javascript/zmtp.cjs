"use strict";
// The listening side of ZMTP over TCP, with the server's own codec. An answer goes back on its request's connection.
// Libraries with native code are no option: the sandbox has only its own Node.js.
const { createServer } = require("node:net");
const { ZmtpReader, zmtpGreeting, zmtpMessage, zmtpReady } = load("zmtp-codec");

// Only the server connects; the limit keeps invalid data from filling the memory.
const LIMITS = { maxMessageBytes: 256 * 1024 * 1024 };

/**
 * Listens on a free port of the loopback address.
 * @param {"ROUTER" | "PUB" | "REP"} type
 * @param {(frames: Buffer[], peer: { send(frames: Buffer[]): boolean, socket: import("node:net").Socket }) => void} receive
 */
function listen(type, receive) {
  const peers = new Set();
  const server = createServer({ noDelay: true }, (socket) => {
    const reader = new ZmtpReader(LIMITS);
    const peer = {
      socket,
      isReady: false,
      /** False when the peer should not be sent more before its socket drains. */
      send(frames) {
        const written = zmtpMessage(frames).map((piece) => socket.write(piece));
        return written.at(-1);
      },
    };
    peers.add(peer);
    socket.on("close", () => peers.delete(peer));
    socket.on("error", () => socket.destroy());
    socket.write(zmtpGreeting());
    socket.on("data", (data) => {
      try {
        for (const event of reader.read(data)) {
          if (event.kind === "greeting") socket.write(zmtpReady(type, ""));
          else if (event.kind === "message") receive(event.frames, peer);
          else if (event.name === "READY") peer.isReady = true;
        }
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

module.exports = { listen };
