import type { ClientRequest, IncomingMessage } from "node:http";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import { releaseMemory } from "../../bounds/memory-room.js";
import { ReadsInTurns } from "../../kernel/reads-in-turns.js";
import { isTurnOver, type Sender, inLaterTurn } from "../../kernel/turns.js";

/** Bytes that are passed on at a time: at first, at least, and at most. A request of usual size is always passed on whole. */
const FIRST_BYTES = 4 * 1024;
const LEAST_BYTES = 2 * 1024;
const MOST_BYTES = 32 * 1024;
/** Of a body that costs no more in large pieces: what Node reads at once. */
const MOST_BODY_BYTES = 64 * 1024;
/**
 * Most of a connection whose bytes are frames that this process parses. It joins the pieces of a long frame in a time
 * that grows with the square of their number.
 */
const MOST_FRAMED_BYTES = 2 * 1024;
/** Time that the bytes should take that are passed on at a time. */
const SLICE_MS = 0.25;

/** Answers of a server with 1xx before the one that counts. */
const MOST_INTERIM = 100;

const pacedReads = new WeakMap<Duplex, PacedReads>();

/**
 * Passes on what a peer sends in slices, each for a fraction of a millisecond, and in turns of the event loop that
 * have time for it. Node's parser of HTTP handles at once what there is, megabytes of tiny chunks or requests.
 * @param socket of an HTTP server or client. Safe to repeat.
 * @param sender who is behind it.
 */
export function paceReads(socket: Socket, sender: Sender = socket): void {
  if (pacedReads.has(socket)) return;
  pacedReads.set(socket, new PacedReads(socket, sender));
  // Node's parser reads from the system by itself, unless another listener wants the data.
  const ignore = (): void => undefined;
  socket.on("data", ignore).off("data", ignore);
}

/**
 * Reads what answers a request as `paceReads` and `joinChunks` do. A server that answers with 1xx again and again is given
 * up, and one that sends chunks of a byte: it is never silent, and its answer never comes.
 */
export function paceAnswer(request: ClientRequest): void {
  let interim = 0;
  request.on("socket", (socket) => paceReads(socket));
  request.on("information", () => {
    interim += 1;
    if (interim > MOST_INTERIM) request.destroy(new Error("the server answers with 1xx without an end"));
  });
  request.on("response", (answer) => {
    if (answer.headers["transfer-encoding"] !== undefined)
      joinChunks(answer, () => answer.destroy(new Error("the server sends chunks of a byte")));
  });
}

/** Passes on fewer bytes at a time, for a parser of small frames. */
export function paceFrames(socket: Duplex): void {
  pacedReads.get(socket)?.limit(MOST_FRAMED_BYTES);
}

/**
 * Passes on the rest of a body in pieces as they come, where its length is known: the parser only copies them. Other
 * bytes of the connection, such as the head of the next request, stay in slices.
 * @param message of which nothing has been read. Its reader takes no longer for the bytes of a large piece: it writes
 * them elsewhere, and parses nothing. Without an effect while the parser still has the slice with the message's head: call
 * it after that turn.
 */
export function passBodyWhole(message: IncomingMessage): void {
  const { headers, complete, readableDidRead, readableFlowing, readableLength } = message;
  const lengthBytes = Number(headers["content-length"] ?? 0);
  // What is read already, or skipped after the answer, cannot be counted any more.
  if (complete || readableDidRead || readableFlowing !== null) return;
  pacedReads.get(message.socket)?.passBody(lengthBytes - readableLength);
}

class PacedReads {
  readonly #socket: Socket;
  readonly #push: (bytes: Buffer | null) => boolean;
  #sliceBytes = FIRST_BYTES;
  #mostBytes = MOST_BYTES;
  #takesMore = true;
  /** Of those to be passed on next, how many are a body that is passed on as it comes. */
  #bodyBytes = 0;
  #isPassingOn = false;

  constructor(socket: Socket, sender: Sender) {
    this.#socket = socket;
    this.#push = socket.push.bind(socket);
    const readMore = socket._read.bind(socket);
    const reads = new ReadsInTurns({
      sender,
      // Node stops reading by itself when `push` returns false.
      source: { pause: () => undefined, resume: () => readMore(0) },
      read: (bytes) => this.#passOn(bytes, reads),
      onEnd: () => {
        this.#push(null);
        socket.read(0);
      },
    });
    socket.push = (bytes: Buffer | null) => {
      if (bytes === null) reads.end();
      else reads.receive(bytes, isTurnOver());
      return this.#takesMore && !reads.isHeld;
    };
    // The stream asks for more after what it wants to be followed by more.
    socket._read = () => reads.resume();
  }

  limit(mostBytes: number): void {
    this.#mostBytes = mostBytes;
    this.#sliceBytes = Math.min(this.#sliceBytes, mostBytes);
  }

  /** @param bytes of the body that its message does not have yet. */
  passBody(bytes: number): void {
    // How much of the slice in the parser is of the body shows only afterwards.
    if (!this.#isPassingOn) this.#bodyBytes = Math.max(bytes - this.#socket.readableLength, 0);
  }

  #passOn(bytes: Buffer, reads: ReadsInTurns): number {
    if (this.#socket.destroyed) return 0;
    const isBody = this.#bodyBytes > 0;
    const mostBytes = isBody ? Math.min(this.#bodyBytes, MOST_BODY_BYTES) : this.#sliceBytes;
    const slice = bytes.subarray(0, mostBytes);
    if (isBody) this.#bodyBytes -= slice.length;
    const startedAtMs = performance.now();
    this.#isPassingOn = true;
    this.#takesMore = this.#push(slice);
    this.#isPassingOn = false;
    if (!this.#takesMore) reads.pause();
    if (!isBody) this.#adapt(performance.now() - startedAtMs);
    const left = bytes.length - slice.length;
    // The parser has copied them.
    if (isBody && left === 0 && this.#socket.readableLength === 0) releaseMemory(bytes);
    return left;
  }

  #adapt(tookMs: number): void {
    if (tookMs > 2 * SLICE_MS)
      this.#sliceBytes = Math.min(Math.max(this.#sliceBytes / 2, LEAST_BYTES), this.#mostBytes);
    else if (tookMs < SLICE_MS / 2) this.#sliceBytes = Math.min(this.#sliceBytes * 2, this.#mostBytes);
  }
}

/** Longer chunks are passed on as they are. */
const SMALL_BYTES = 1024;
/** Bytes of the connection, after which its content has to be a part of them. */
const CHECKED_BYTES = 1024 * 1024;
const LEAST_SHARE = 1 / 4;

/**
 * Joins small chunks of a body that come together: each piece costs its readers a microsecond, or several.
 * @param onWasteful called, once or more, when the body was framing for the most part: chunks of a byte.
 */
export function joinChunks(message: IncomingMessage, onWasteful: () => void): void {
  const push = message.push.bind(message);
  const { socket } = message;
  const startBytes = socket.bytesRead;
  let contentBytes = 0;
  let small: Buffer[] = [];
  let smallBytes = 0;

  const flush = (): void => {
    if (small.length === 0) return;
    const joined = small.length === 1 ? small[0] : Buffer.concat(small, smallBytes);
    small = [];
    smallBytes = 0;
    if (!message.destroyed) push(joined);
  };
  const flushLater = (): void => {
    flush();
    const bytes = socket.bytesRead - startBytes;
    if (bytes > CHECKED_BYTES && contentBytes < bytes * LEAST_SHARE) onWasteful();
  };
  message.push = (chunk: Buffer | null): boolean => {
    contentBytes += chunk?.length ?? 0;
    if (chunk === null || chunk.length > SMALL_BYTES) {
      flush();
      return push(chunk);
    }
    if (small.length === 0) process.nextTick(flushLater);
    small.push(chunk);
    smallBytes += chunk.length;
    return message.readableLength + smallBytes < message.readableHighWaterMark;
  };
}

/** What Node has below a socket. Pausing the socket itself has no effect on the TLS that reads from it. */
interface Handle {
  readStart(): number;
  readStop(): number;
}

/** Records that are decrypted in a turn that is over, before the other connections wait. */
const MOST_LATE = 16;

/**
 * Has the connections of a TLS server wait for turns of the event loop. Node decrypts at once all that it has read of each,
 * and each handshake costs a signature: those of many connections together would take a long turn.
 */
export class TlsTurns {
  /** Those that are read, with who is behind them. */
  readonly #reading = new Map<Socket, Sender>();
  #late = 0;

  /** @param raw connection whose handshake is to come. */
  add(raw: Socket, sender: Sender): void {
    raw.once("close", () => this.#reading.delete(raw));
    this.#wait(raw, sender);
  }

  /** Looks at what is decrypted. */
  watch(socket: Socket): void {
    const push = socket.push.bind(socket);
    socket.push = (bytes: Buffer | null) => {
      const takesMore = push(bytes);
      this.#late = isTurnOver() ? this.#late + 1 : 0;
      if (this.#late >= MOST_LATE) for (const [raw, sender] of this.#reading) this.#wait(raw, sender);
      return takesMore;
    };
  }

  #wait(raw: Socket, sender: Sender): void {
    this.#reading.delete(raw);
    handleOf(raw)?.readStop();
    inLaterTurn(sender, () => {
      if (raw.destroyed) return;
      this.#reading.set(raw, sender);
      handleOf(raw)?.readStart();
    });
  }
}

function handleOf(raw: Socket): Handle | null | undefined {
  return (raw as unknown as { readonly _handle?: Handle | null })._handle;
}
