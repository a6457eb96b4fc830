import type { IncomingMessage } from "node:http";
import type { Duplex } from "node:stream";
import { SandboxError } from "../kernel/errors.js";
import type { Shares } from "./tenants.js";

/** Bytes of each message that are not counted: nearly all messages have no more. */
const FREE_BYTES = 64 * 1024;

/** Counts what of a message is in memory because its reader wants all of it at once. */
interface HeldBody {
  readonly hold: (bytes: number) => void;
  readonly release: (bytes: number) => void;
}

const heldBodies = new WeakMap<IncomingMessage, HeldBody>();

export interface CountedBodyOptions {
  readonly room: Shares;
  readonly owner: string;
  /** Calls back when the request is over. */
  readonly onEnd: (act: () => void) => void;
}

/** Has what is read whole of a message take room, until its request is over. */
export function countBody(message: IncomingMessage, { room, owner, onEnd }: CountedBodyOptions): void {
  let heldBytes = 0;
  let takenBytes = 0;
  let isEndNoted = false;
  let isOver = false;
  const take = (bytes: number): void => {
    if (bytes === 0 || isOver) return;
    if (room.take(owner, bytes) !== undefined) throw noRoom();
    takenBytes += bytes;
    if (isEndNoted) return;
    isEndNoted = true;
    onEnd(() => {
      isOver = true;
      room.give(owner, takenBytes);
    });
  };
  heldBodies.set(message, {
    hold(bytes) {
      const more = heldBytes + bytes;
      if (more > FREE_BYTES) take(more - takenBytes);
      heldBytes = more;
    },
    release(bytes) {
      heldBytes -= bytes;
      if (takenBytes <= heldBytes || isOver) return;
      room.give(owner, takenBytes - heldBytes);
      takenBytes = heldBytes;
    },
  });
}

/** Notes bytes of a message that its reader keeps. @throws SandboxError server_busy when there is no room for them. */
export function holdBytes(message: IncomingMessage, bytes: number): void {
  heldBodies.get(message)?.hold(bytes);
}

/** Gives back what `holdBytes` has noted, before the request is over. */
export function releaseBytes(message: IncomingMessage, bytes: number): void {
  heldBodies.get(message)?.release(bytes);
}

/** What is needed of the WebSockets of `ws`. */
interface MessageSocket {
  on(event: "message", listener: () => void): unknown;
  on(event: "ping" | "pong", listener: (data: Buffer) => void): unknown;
  terminate(): void;
}

/** Of a client's frame with a short payload: its length, and its mask. */
const FRAME_HEAD_BYTES = 6;

/** Has what a client has sent of a message of a WebSocket take room until it is whole. Without room the connection is cut. */
export function countMessages(
  webSocket: MessageSocket,
  { message, socket }: { readonly message: IncomingMessage; readonly socket: Duplex },
): void {
  let heldBytes = 0;
  const release = (most: number): void => {
    const bytes = Math.min(most, heldBytes);
    heldBytes -= bytes;
    releaseBytes(message, bytes);
  };
  // Before the parser gets them.
  socket.prependListener("data", (bytes: Buffer) => {
    try {
      holdBytes(message, bytes.length);
      heldBytes += bytes.length;
    } catch {
      webSocket.terminate();
    }
  });
  webSocket.on("message", () => release(Infinity));
  // They may come between the frames of a message.
  for (const event of ["ping", "pong"] as const)
    webSocket.on(event, ({ length }: Buffer) => release(length + FRAME_HEAD_BYTES));
}

function noRoom(): SandboxError {
  return new SandboxError("server_busy", "large bodies of other requests fill http.maxHeldBodies", {
    retryAfterSeconds: 1,
  });
}
