import type { Socket } from "node:net";
import { inLaterTurn, isTurnOver, type Sender } from "../../kernel/turns.js";

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
