import { randomUUID } from "node:crypto";
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import { SandboxError } from "../../kernel/errors.js";
import { currentOwner } from "../../kernel/owner.js";
import type { Logger } from "../../observe/logger.js";
import type { ClientAddresses } from "../clients/client-address.js";
import type { SurfaceRequest, Target } from "./surface-request.js";

/** Shared by all requests: each ends with it, and its stack would tell nothing. Handlers throw it on. */
const CLIENT_GONE = new SandboxError("client_gone", "the client is gone");
const SANE_REQUEST_ID = /^[\w.-]{1,128}$/;

interface IncomingRequestParts {
  readonly message: IncomingMessage;
  /** Its answer, or the socket of an upgrade: the request ends when this closes. */
  readonly closing: ServerResponse | Duplex;
  readonly clientAddresses: ClientAddresses;
  readonly log: Logger;
}

/** A request from its headers to the end of its answer. What most requests do not need is made on demand. */
export class IncomingRequest implements SurfaceRequest {
  readonly id: string;
  readonly principal = undefined;
  /** The listener's name until it is known. */
  surface: string;
  isPassedOn = false;
  readonly #parts: IncomingRequestParts;
  /** Read at once: a socket that is closed has none. */
  readonly #peer: string | undefined;
  readonly #ends: (() => void)[] = [];
  #target: Target | undefined;
  #url: URL | undefined;
  #log: { readonly plugin: string; readonly log: Logger } | undefined;
  #gone: AbortController | undefined;
  /** Of the abort. */
  #reason: SandboxError | undefined;
  #isOver = false;

  constructor(surface: string, parts: IncomingRequestParts) {
    const given = parts.message.headers["x-request-id"];
    this.id = typeof given === "string" && SANE_REQUEST_ID.test(given) ? given : randomUUID();
    this.surface = surface;
    this.#parts = parts;
    this.#peer = parts.message.socket.remoteAddress;
    parts.closing.on("close", () => this.#end());
  }

  get method(): string {
    return this.#parts.message.method ?? "";
  }

  get headers(): IncomingMessage["headers"] {
    return this.#parts.message.headers;
  }

  /** @throws SandboxError target_invalid */
  get url(): URL {
    this.#url ??= parseUrl(this.#parts.message);
    return this.#url;
  }

  get target(): Target | undefined {
    return this.#target;
  }

  set target(target: Target | undefined) {
    this.#target = target;
    this.#log = undefined;
  }

  /** With the name of the plugin that asks for it. */
  get log(): Logger {
    const plugin = currentOwner();
    if (this.#log?.plugin !== plugin) {
      const about = this.#target && { sandboxId: this.#target.sandbox.record.id };
      const log = this.#parts.log.child({ plugin, requestId: this.id, ...about });
      this.#log = { plugin, log };
    }
    return this.#log.log;
  }

  get signal(): AbortSignal {
    this.#gone ??= new AbortController();
    if (this.#reason !== undefined) this.#gone.abort(this.#reason);
    return this.#gone.signal;
  }

  get clientAddress(): string {
    return this.#parts.clientAddresses.of(this.#peer, this.headers);
  }

  get protocol(): "http" | "https" {
    const { clientAddresses, message } = this.#parts;
    return clientAddresses.protocolOf(message.socket, this.headers);
  }

  /** Calls it when the request is over, or at once. Costs less than a listener of its own for each. */
  onEnd(act: () => void): void {
    if (this.#isOver) act();
    else this.#ends.push(act);
  }

  /** Aborts the signal. */
  abort(reason: SandboxError): void {
    this.#reason ??= reason;
    this.#gone?.abort(this.#reason);
  }

  #end(): void {
    this.#isOver = true;
    this.abort(CLIENT_GONE);
    for (const act of this.#ends) act();
  }
}

function parseUrl({ url = "/" }: IncomingMessage): URL {
  // A base would be parsed each time, too.
  const parsed = url.startsWith("/") ? URL.parse(`http://server${url}`) : URL.parse(url, "http://server");
  if (parsed === null) throw new SandboxError("target_invalid", "the request target is no URL");
  return parsed;
}
