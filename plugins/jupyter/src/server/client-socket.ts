import { type Clock, CloseCode, type HeldMemory, type WebSocket } from "@coppice/core";
import type { Framing } from "./client-frame.js";
import type { JupyterServerSettings } from "./jupyter-server-config.js";
import type { SharedFrame } from "./server-frame.js";

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
