import type { IncomingHttpHeaders } from "node:http";
import type { Duplex } from "node:stream";
import { SandboxError } from "../../kernel/errors.js";
import type { SandboxId } from "../../sandbox/contract/backend.js";
import { isSameOrigin } from "./local-client.js";

export interface SandboxSocketsOptions {
  readonly maxSockets: number;
  readonly maxSocketsPerSandbox: number;
  /** Web pages that may open one, beside those of this server. */
  readonly allowedOrigins: readonly string[];
}

/** The WebSockets of a plugin's clients, each for one sandbox. */
export class SandboxSockets {
  readonly #options: SandboxSocketsOptions;
  readonly #open = new Map<Duplex, SandboxId>();

  constructor(options: SandboxSocketsOptions) {
    this.#options = options;
  }

  /**
   * Refuses web pages of other sites: a page may open a WebSocket to any server, with the cookies and the address of its
   * visitor.
   * @throws SandboxError permission_denied
   */
  checkOrigin(headers: IncomingHttpHeaders): void {
    if (isSameOrigin(headers) || this.#options.allowedOrigins.includes(headers.origin ?? "")) return;
    throw new SandboxError("origin_not_allowed", "this web page may not open a WebSocket here");
  }

  /** Counts a socket until it closes. @throws SandboxError resource_exhausted when too many are open. */
  add(socket: Duplex, sandbox: SandboxId): void {
    const { maxSockets, maxSocketsPerSandbox } = this.#options;
    let ofSandbox = 0;
    for (const other of this.#open.values()) if (other === sandbox) ofSandbox += 1;
    if (this.#open.size >= maxSockets || ofSandbox >= maxSocketsPerSandbox) {
      throw new SandboxError("socket_limit_reached", "too many WebSockets are open");
    }
    this.#open.set(socket, sandbox);
    socket.once("close", () => this.#open.delete(socket));
  }

  destroyAll(): void {
    for (const socket of this.#open.keys()) socket.destroy();
  }
}
