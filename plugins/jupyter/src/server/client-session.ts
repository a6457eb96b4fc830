import { type Clock, CloseCode, type HeldMemory, type WebSocket } from "@coppice/core";
import type { Framing } from "./client-frame.js";
import type { JupyterServerSettings } from "./jupyter-server-config.js";
import { type SharedFrame, syntheticFrame } from "./server-frame.js";

/** One client of a kernel, across reconnections under the same session id. */
export class ClientSession {
  readonly id: string;
  /** True while the kernel waits for this client's input. */
  isAskedForInput = false;
  pendingRequests = 0;
  pendingBytes = 0;
  /** Cancels the removal of a disconnected client. */
  cancelForget: () => void = () => undefined;
  readonly #replay: ReplayBuffer;
  #socket: ClientSocket | undefined;

  constructor(id: string, maxReplayBytes: number, place: ReturnType<HeldMemory["place"]>) {
    this.id = id;
    this.#replay = new ReplayBuffer(maxReplayBytes, place);
  }

  get isConnected(): boolean {
    return this.#socket !== undefined;
  }

  /** Attaches a new connection and sends the missed messages first. An older connection is closed. */
  connect(socket: ClientSocket): void {
    const before = this.#socket;
    if (before !== undefined) {
      this.disconnect(before);
      before.close(CloseCode.Normal, "replaced by a newer connection of the same session");
    }
    this.#socket = socket;
    for (const frame of this.#replay.take()) socket.send(frame);
  }

  /** Keeps messages from here on. False for a connection that was replaced meanwhile. */
  disconnect(socket: ClientSocket): boolean {
    if (this.#socket !== socket) return false;
    this.#socket = undefined;
    for (const frame of socket.unsent()) this.#replay.add(frame);
    return true;
  }

  /**
   * Sends a message, or keeps it for a disconnected client.
   * @param isOwn true for an answer to this client.
   * @returns a promise while the kernel has to wait for the client; "lost" when nothing more can be kept.
   */
  deliver(frame: SharedFrame, isOwn: boolean): Promise<void> | "lost" | undefined {
    const socket = this.#socket;
    if (socket === undefined) return this.#replay.add(frame) ? undefined : "lost";
    socket.send(frame);
    return socket.caughtUp(isOwn);
  }

  /** Drops what it has missed. */
  drop(): void {
    this.#replay.take();
  }

  close(code: number, reason: string): void {
    this.#socket?.close(code, reason);
  }
}

interface ClientSocketOptions {
  readonly framing: Framing;
  readonly clock: Clock;
  readonly settings: JupyterServerSettings;
  /** What waits for the client. */
  readonly place: ReturnType<HeldMemory["place"]>;
}

/** Time for a client to confirm a close before the connection is cut. */
const CLOSE_GRACE_MS = 2000;

/** One WebSocket to a client: limits its queue and closes one that reads too slowly. */
export class ClientSocket {
  readonly framing: Framing;
  readonly #socket: WebSocket;
  readonly #clock: Clock;
  readonly #settings: JupyterServerSettings;
  readonly #place: ReturnType<HeldMemory["place"]>;
  /** Frames not yet handed to the operating system, in order. */
  readonly #waiting = new Set<{ readonly frame: SharedFrame; readonly sizeBytes: number }>();
  #waitingBytes = 0;
  #drained: { readonly promise: Promise<void>; readonly resolve: () => void } | undefined;
  #cancelStall: (() => void) | undefined;
  /** True when any progress of the client suffices. */
  #isOwnOutput = false;
  #cancelCut: () => void = () => undefined;
  #isClosing = false;
  /** Close code that the server sent; undefined when the client closed the socket. */
  closedWith: number | undefined;

  constructor(socket: WebSocket, { framing, clock, settings, place }: ClientSocketOptions) {
    this.#socket = socket;
    this.#clock = clock;
    this.#settings = settings;
    this.#place = place;
    this.framing = framing;
    socket.once("close", () => {
      this.#isClosing = true;
      this.#cancelCut();
      this.#release();
      this.#place[Symbol.dispose]();
    });
  }

  send(frame: SharedFrame): void {
    if (this.#isClosing) return;
    const { data, isBinary } = frame.encoded(this.framing);
    const entry = { frame, sizeBytes: data.length };
    this.#waiting.add(entry);
    this.#waitingBytes += entry.sizeBytes;
    this.#place.resize(this.#waitingBytes);
    this.#socket.send(data, { binary: isBinary }, (error) => {
      if (error) return;
      this.#waiting.delete(entry);
      this.#waitingBytes -= entry.sizeBytes;
      this.#place.resize(this.#waitingBytes);
      if (this.#drained === undefined) return;
      if (this.#waitingBytes <= this.#settings.maxClientQueue / 2) this.#release();
      else if (this.#isOwnOutput) this.#watch(this.#settings.slowClientTimeout);
    });
  }

  /**
   * Resolves when the client has caught up, or is gone. It may take any time for its own output as long as it makes
   * progress, but only a short time for other clients'. A slower one is closed.
   */
  caughtUp(isOwnOutput: boolean): Promise<void> | undefined {
    if (this.#waitingBytes <= this.#settings.maxClientQueue || this.#isClosing) return undefined;
    if (this.#drained === undefined) {
      this.#drained = Promise.withResolvers<void>();
      this.#isOwnOutput = isOwnOutput;
      this.#watch(isOwnOutput ? this.#settings.slowClientTimeout : this.#settings.slowLookerTimeout);
    } else if (isOwnOutput && !this.#isOwnOutput) {
      this.#isOwnOutput = true;
      this.#watch(this.#settings.slowClientTimeout);
    }
    return this.#drained.promise;
  }

  /** Frames that may not have reached the client, in order. */
  unsent(): readonly SharedFrame[] {
    return [...this.#waiting].map(({ frame }) => frame);
  }

  /** Closes the connection; one that does not answer is cut. */
  close(code: number, reason: string): void {
    if (this.#isClosing) return;
    this.#isClosing = true;
    this.closedWith = code;
    this.#release();
    this.#socket.close(code, reason);
    this.#cancelCut = this.#clock.after(CLOSE_GRACE_MS, () => this.#socket.terminate());
  }

  #watch(timeoutMs: number): void {
    this.#cancelStall?.();
    this.#cancelStall = this.#clock.after(timeoutMs, () =>
      this.close(CloseCode.TryAgain, "the client reads too slowly"),
    );
  }

  #release(): void {
    this.#cancelStall?.();
    this.#cancelStall = undefined;
    this.#drained?.resolve();
    this.#drained = undefined;
  }
}

/** Messages that may be dropped when there are too many; without any other a client would wait forever. */
const OUTPUT = new Set([
  "stream",
  "display_data",
  "update_display_data",
  "execute_result",
  "comm_open",
  "comm_msg",
]);

/** Keeps the messages of a disconnected client: up to a number of bytes, then ends and answers without the output. */
export class ReplayBuffer {
  readonly #limitBytes: number;
  #frames: SharedFrame[] = [];
  readonly #place: ReturnType<HeldMemory["place"]>;
  #sizeBytes = 0;
  #isCut = false;

  constructor(limitBytes: number, place: ReturnType<HeldMemory["place"]>) {
    this.#limitBytes = limitBytes;
    this.#place = place;
  }

  /** False when not even answers fit any more: a replay would be useless. */
  add(frame: SharedFrame): boolean {
    const sizeBytes = frame.sizeBytes + FRAME_BYTES;
    const isOutput = OUTPUT.has(frame.frame.type);
    if (this.#sizeBytes + sizeBytes > this.#limitBytes && isOutput) {
      if (!this.#isCut) {
        this.#isCut = true;
        const text = `\n[output missing: more than ${this.#limitBytes} bytes while the client was away]\n`;
        const { session, parentHeader } = frame.frame;
        const content = { name: "stderr", text };
        this.#frames.push(syntheticFrame({ type: "stream", content, session, parentHeader }));
      }
      return true;
    }
    this.#frames.push(frame);
    this.#sizeBytes += sizeBytes;
    this.#place.resize(this.#sizeBytes);
    return this.#sizeBytes <= 2 * this.#limitBytes;
  }

  take(): readonly SharedFrame[] {
    const frames = this.#frames;
    this.#frames = [];
    this.#sizeBytes = 0;
    this.#place.resize(0);
    this.#isCut = false;
    return frames;
  }
}

// Overhead of a message, so that empty ones are bounded, too.
const FRAME_BYTES = 512;
