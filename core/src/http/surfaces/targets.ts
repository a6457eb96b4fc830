import type { IncomingMessage } from "node:http";
import { createToken } from "../../kernel/token.js";
import type { Guard } from "./surface-hooks.js";
import type { Target } from "./surface-request.js";

/** A bound address of the server, as the configuration names it. */
export interface Listener {
  readonly name: string;
  readonly host: string;
  /** The port it was given, which is not the configured one when that is 0. 0 before `listen`. */
  readonly port: number;
  /** True when only this machine can reach it. */
  readonly isLoopback: boolean;
  /** The operator's word that serving without authentication or isolation is meant. */
  readonly insecure: boolean;
  readonly tls: boolean;
  /** Where a client on this machine reaches it: `http://127.0.0.1:3000`. */
  readonly url: string;
}

/** The listeners of this server. */
export interface Listeners {
  all(): readonly Listener[];
}

export const Listeners = createToken<Listeners>("listeners");

/**
 * Finds the sandbox of a request that names none by Host or headers.
 * Answers undefined for "not mine".
 */
export type TargetResolver = (
  message: IncomingMessage,
  url: URL,
  listener: Listener,
) => Promise<Target | undefined>;

/** Further ways to find the sandbox of a request, and checks of requests that are addressed to sandboxes. */
export interface Targets {
  /** A further way to find the sandbox of a request; asked in the order they were added. */
  add(resolver: TargetResolver): void;
  /**
   * A further check of whatever is addressed to a sandbox: at surfaces before their own guards, at all other ports
   * before anything is passed on. What it throws is the answer. Call it during `setup`.
   */
  guard(check: Guard): void;
  /**
   * From now on a surface answers what is addressed to that port of any sandbox, and nothing of it is passed
   * into the sandbox. Call it during `setup`.
   * @throws Error when another surface answers that port.
   */
  claimPort(port: number, surface: string): void;
}

export const Targets = createToken<Targets>("targets");

/** Fixed by the E2B SDKs: the ports inside a sandbox that the server answers itself. */
export const ENVD_PORT = 49983;
export const CODE_PORT = 49999;
