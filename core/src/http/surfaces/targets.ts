import type { IncomingMessage } from "node:http";
import { createToken } from "../../kernel/token.js";
import type { Guard, Target } from "./surface-request.js";
import type { SandboxId } from "../../sandbox/contract/backend.js";

/** Version of envd from which E2B's clients derive features: 0.6.4 and above turns every one on. */
export const ENVD_VERSION = "0.6.13";

/** A bound address of the server, as the configuration names it. */
export interface Listener {
  readonly name: string;
  readonly host: string;
  /** The bound port, also when the configured one is 0. 0 before `listen`. */
  readonly port: number;
  /** True when only this machine can reach it. */
  readonly isLoopback: boolean;
  /** The operator confirmed that serving without authentication or isolation is intended. */
  readonly insecure: boolean;
  readonly tls: boolean;
  /** URL for clients on this machine: `http://127.0.0.1:3000`. */
  readonly url: string;
}

/** The listeners of this server. */
export interface Listeners {
  all(): readonly Listener[];
  /** Cuts the connections of all clients at once; new ones are taken. */
  cut(reason: string): void;
}

export const Listeners = createToken<Listeners>("listeners");

/** A request as far as it tells which sandbox it is for. */
export type TargetQuestion = Pick<IncomingMessage, "method" | "headers">;

/** A sandbox that a request is for, and this server does not have: another one of its fleet may. */
export interface MissingTarget {
  /** Undefined when the request does not tell: all other servers are asked. */
  readonly sandboxId: SandboxId | undefined;
  /** The answer when no server has it. */
  readonly refusal: Error;
}

/**
 * Finds the sandbox of a request that names none by Host or headers. Answers undefined for requests of other kinds. Runs
 * again where another server passes the request on to.
 */
export type TargetResolver = (
  question: TargetQuestion,
  url: URL,
  listener: Pick<Listener, "name" | "isLoopback">,
) => Promise<Target | MissingTarget | undefined>;

/** Further ways to find the sandbox of a request, and checks of requests that are addressed to sandboxes. */
export interface Targets {
  /** Adds a way to find the sandbox of a request; tried in the order they were added. */
  add(resolver: TargetResolver): void;
  /**
   * The sandbox of this server that a request of a foreign one is for, as the resolvers find it.
   * @throws the refusal of one that found none.
   */
  findHere(question: TargetQuestion, url: URL, listener: string): Promise<Target | undefined>;
  /**
   * Adds a check of requests addressed to sandboxes: at surfaces before their own guards, at other ports before
   * anything is passed on. The error that it throws is the answer. Call it during `setup`.
   */
  guard(check: Guard): void;
  /**
   * From now on a surface answers requests to that port of any sandbox; none reaches the sandbox. Call it during
   * `setup`.
   * @throws Error when another surface answers that port.
   */
  claimPort(port: number, surface: string): void;
}

export const Targets = createToken<Targets>("targets");

/** Fixed by the E2B SDKs: the ports inside a sandbox that the server answers itself. */
export const ENVD_PORT = 49983;
export const CODE_PORT = 49999;
