import { once } from "node:events";
import type { WebSocket } from "ws";

const KINDS = { stdin: 1, output: 2, resize: 3, exit: 4, ping: 5 } as const;

export interface TerminalSize {
  readonly cols: number;
  readonly rows: number;
}

/** One connection to a terminal of `/v1`, by the contract's frames. */
export class DurableTerminal {
  /** Everything that the server sent that is no output, an exit or a ping. */
  readonly unknown: unknown[] = [];
  pings = 0;
  /** The exit code; undefined while there is none. */
  exitCode: number | undefined;
  /** The close code; undefined while it is open. */
  closed: number | undefined;
  readonly #output: Buffer[] = [];

  constructor(readonly socket: WebSocket) {
    socket.on("message", (frame: Buffer, binary) => {
      if (!binary) this.unknown.push(frame.toString());
      else if (frame[0] === KINDS.output) this.#output.push(frame.subarray(1));
      else if (frame[0] === KINDS.exit) this.exitCode = frame.length >= 5 ? frame.readInt32BE(1) : 0;
      else if (frame[0] === KINDS.ping) {
        this.pings += 1;
        this.send(KINDS.ping);
      } else this.unknown.push(frame);
    });
    socket.on("close", (code) => (this.closed = code));
    socket.on("error", () => undefined);
  }

  get output(): string {
    return Buffer.concat(this.#output).toString();
  }

  send(kind: number, payload: Uint8Array = Buffer.alloc(0)): void {
    this.socket.send(Buffer.concat([Buffer.of(kind), payload]), { binary: true });
  }

  type(text: string): void {
    this.send(KINDS.stdin, Buffer.from(text));
  }

  resize({ cols, rows }: TerminalSize = { cols: 80, rows: 24 }): void {
    const payload = Buffer.alloc(4);
    payload.writeUInt16BE(cols, 0);
    payload.writeUInt16BE(rows, 2);
    this.send(KINDS.resize, payload);
  }

  /** Closes the connection; the terminal stays. */
  async hangUp(): Promise<void> {
    if (this.closed !== undefined) return;
    const closed = once(this.socket, "close");
    this.socket.close();
    await closed;
  }
}
