import type { Clock } from "@coppice/core";
import type { WebSocket } from "ws";
import type { Framing } from "./client-frame.js";
import type { JupyterServerSettings } from "./jupyter-server-config.js";
import type { SharedFrame } from "./server-frame.js";

interface ClientSocketOptions {
  readonly framing: Framing;
  readonly clock: Clock;
  readonly settings: JupyterServerSettings;
}

export const CloseCode = {
  Normal: 1000,
  InvalidData: 1007,
  InternalError: 1011,
  TryAgain: 1013,
} as const;

/** Time for a client to confirm a close before the connection is cut. */
const CLOSE_GRACE_MS = 2000;

/** One WebSocket to a client: limits its queue and detects dead peers. */
export class ClientSocket {
  readonly framing: Framing;
  readonly #socket: WebSocket;
  readonly #clock: Clock;
  readonly #settings: JupyterServerSettings;
  /** Frames not yet handed to the operating system, in order. */
  readonly #waiting = new Set<{ readonly frame: SharedFrame; readonly sizeBytes: number }>();
  #waitingBytes = 0;
  #drained: { readonly promise: Promise<void>; readonly resolve: () => void } | undefined;
  #cancelStall: (() => void) | undefined;
  /** True when any progress of the client suffices. */
  #isOwnOutput = false;
  #cancelPing: () => void = () => undefined;
  #cancelCut: () => void = () => undefined;
  #isAlive = true;
  #isClosing = false;
  /** Close code that the server sent; undefined when the client closed the socket. */
  closedWith: number | undefined;

  constructor(socket: WebSocket, { framing, clock, settings }: ClientSocketOptions) {
    this.#socket = socket;
    this.#clock = clock;
    this.#settings = settings;
    this.framing = framing;
    socket.on("pong", () => {
      this.#isAlive = true;
    });
    socket.once("close", () => {
      this.#isClosing = true;
      this.#cancelPing();
      this.#cancelCut();
      this.#release();
    });
    // An error is followed by "close", which is handled above.
    socket.on("error", () => undefined);
    this.#ping();
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

  #ping(): void {
    this.#cancelPing = this.#clock.after(this.#settings.ping, () => {
      // The pong of a merely slow client waits behind its unread messages.
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
