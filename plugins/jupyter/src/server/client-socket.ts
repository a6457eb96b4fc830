import type { Clock } from "@coppice/core";
import type { WebSocket } from "ws";
import type { Framing } from "./client-frame.js";
import type { SharedFrame } from "./server-frame.js";

export interface ClientSocketOptions {
  readonly framing: Framing;
  readonly clock: Clock;
  /** Limit of the bytes that wait for the client. */
  readonly queueBytes: number;
  /** How long it may take nothing while its own output waits. */
  readonly stallMs: number;
  /** How long somebody else's output waits for it to catch up. */
  readonly patienceMs: number;
  readonly pingMs: number;
}

/** Codes that clients know: the WebSocket protocol's own. */
export const CloseCode = {
  Normal: 1000,
  GoingAway: 1001,
  InvalidData: 1007,
  InternalError: 1011,
  TryAgain: 1013,
} as const;

/** How long a client may take to agree to a close before the connection is cut. */
const CLOSE_GRACE_MS = 2000;

/** One WebSocket to a client: counts what waits in it and finds out when nobody is there any more. */
export class ClientSocket {
  readonly framing: Framing;
  readonly #socket: WebSocket;
  readonly #options: ClientSocketOptions;
  /** Not yet handed to the operating system, in order. */
  readonly #waiting = new Set<{ readonly frame: SharedFrame; readonly sizeBytes: number }>();
  #waitingBytes = 0;
  #drained: { readonly promise: Promise<void>; readonly resolve: () => void } | undefined;
  #cancelStall: (() => void) | undefined;
  /** True when it is enough to take something, however little. */
  #isOwnOutput = false;
  #cancelPing: () => void = () => undefined;
  #cancelCut: () => void = () => undefined;
  #isAlive = true;
  #isClosing = false;
  #closedWith: number | undefined;

  constructor(socket: WebSocket, options: ClientSocketOptions) {
    this.#socket = socket;
    this.#options = options;
    this.framing = options.framing;
    socket.on("pong", () => {
      this.#isAlive = true;
    });
    socket.once("close", () => {
      this.#isClosing = true;
      this.#cancelPing();
      this.#cancelCut();
      this.#release();
    });
    // Told by its close as well.
    socket.on("error", () => undefined);
    this.#ping();
  }

  /** The code that the server closed it with; undefined when the client went by itself. */
  get closedWith(): number | undefined {
    return this.#closedWith;
  }

  /** True while more waits than may. */
  get isBehind(): boolean {
    return this.#waitingBytes > this.#options.queueBytes;
  }

  send(frame: SharedFrame): void {
    if (this.#isClosing) return;
    const { data, isBinary } = frame.encoded(this.framing);
    const entry = { frame, sizeBytes: data.length };
    this.#waiting.add(entry);
    this.#waitingBytes += entry.sizeBytes;
    this.#socket.send(data, { binary: isBinary }, (error) => {
      if (error) return;
      this.#waiting.delete(entry);
      this.#waitingBytes -= entry.sizeBytes;
      if (this.#drained === undefined) return;
      if (this.#waitingBytes <= this.#options.queueBytes / 2) this.#release();
      else if (this.#isOwnOutput) this.#watch(this.#options.stallMs);
    });
  }

  /**
   * Resolves when the client has caught up, or is gone. Its own output may take as long as it takes any of it
   * now and then; somebody else's waits a short time only. One that is slower is closed.
   */
  caughtUp(isOwnOutput: boolean): Promise<void> | undefined {
    if (!this.isBehind || this.#isClosing) return undefined;
    if (this.#drained === undefined) {
      this.#drained = Promise.withResolvers<void>();
      this.#isOwnOutput = isOwnOutput;
      this.#watch(isOwnOutput ? this.#options.stallMs : this.#options.patienceMs);
    } else if (isOwnOutput && !this.#isOwnOutput) {
      this.#isOwnOutput = true;
      this.#watch(this.#options.stallMs);
    }
    return this.#drained.promise;
  }

  /** Frames that may not have reached the client, in order. */
  unsent(): readonly SharedFrame[] {
    return [...this.#waiting].map(({ frame }) => frame);
  }

  /** Ends the connection; one that does not answer is cut. */
  close(code: number, reason: string): void {
    if (this.#isClosing) return;
    this.#isClosing = true;
    this.#closedWith = code;
    this.#release();
    this.#socket.close(code, reason);
    this.#cancelCut = this.#options.clock.after(CLOSE_GRACE_MS, () => this.#socket.terminate());
  }

  #watch(timeoutMs: number): void {
    this.#cancelStall?.();
    this.#cancelStall = this.#options.clock.after(timeoutMs, () =>
      this.close(CloseCode.TryAgain, "the client reads too slowly"),
    );
  }

  #release(): void {
    this.#cancelStall?.();
    this.#cancelStall = undefined;
    this.#drained?.resolve();
    this.#drained = undefined;
  }

  #ping(): void {
    this.#cancelPing = this.#options.clock.after(this.#options.pingMs, () => {
      // A client that is only slow has its pong behind what it has not read yet.
      if (!this.#isAlive && this.#waitingBytes === 0) {
        this.#socket.terminate();
        return;
      }
      this.#isAlive = false;
      this.#socket.ping();
      this.#ping();
    });
  }
}
