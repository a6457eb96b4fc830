import { randomBytes } from "node:crypto";
import { SandboxError } from "@coppice/core";
import type { FleetSecrets, Proven } from "./fleet-secrets.js";
import { REASONS, unavailable } from "../reasons.js";

/** What a proof is about: whatever of a request decides what its sender may do. */
export interface ProvenRequest {
  readonly method: string;
  /** As it is sent, with the query. */
  readonly path: string;
  /** Listener that the client reached, and its sender, as the headers say them. */
  readonly listener: string | undefined;
  readonly principal: string | undefined;
}

/** The process of a server, as its record names it. */
export interface ServerRun {
  readonly identity: string;
  readonly run: string;
}

interface RequestProverOptions {
  readonly secrets: FleetSecrets;
  readonly secret: string;
  readonly server: ServerRun;
  /** Milliseconds that no clock's correction changes; of this process by default. */
  readonly nowMs?: () => number;
}

const PROOF = /^([\w-]{8})\.([\w-]{1,64})\.(\d{1,15})-([\w-]{16})\.(\d{1,15})\.([\w-]{43})$/;
/** Senders that are remembered: each process of a server has one, and each run of a verb. */
const MOST_SENDERS = 4096;
/** A sender that was silent for so long begins anew, as the other side may have forgotten it. */
const SILENT_MS = 60_000;

/** Proves requests to one other server: each proof is for one request, of that process of the server. */
export class RequestProver {
  readonly #options: RequestProverOptions;
  readonly #nowMs: () => number;
  /** One for all times, so that a server takes one place of those that the other side remembers. */
  readonly #id = randomBytes(12).toString("base64url");
  #sender = "";
  #number = 0;
  #lastMs = Number.NEGATIVE_INFINITY;

  constructor(options: RequestProverOptions) {
    this.#options = options;
    this.#nowMs = options.nowMs ?? (() => Math.floor(performance.timeOrigin + performance.now()));
  }

  /** A new one at each call: ask for it when the request is sent. */
  proofOf(request: ProvenRequest): string {
    const { secrets, secret, server } = this.#options;
    const nowMs = this.#nowMs();
    if (nowMs - this.#lastMs > SILENT_MS) {
      this.#sender = `${nowMs}-${this.#id}`;
      this.#number = 0;
    }
    this.#lastMs = nowMs;
    this.#number += 1;
    const [sender, number] = [this.#sender, this.#number];
    const text = provenText(request, { ...server, sender, number });
    return `${secret}.${server.run}.${sender}.${number}.${secrets.proofOf(text, secret)}`;
  }
}

interface RequestVerifierOptions {
  readonly secrets: FleetSecrets;
  readonly server: () => ServerRun;
}

/** What a sender has sent since it last began. */
interface Sender {
  readonly bornMs: number;
  readonly numbers: SentNumbers;
}

/** Checks that requests are those of other servers, and that none comes twice. */
export class RequestVerifier {
  readonly #options: RequestVerifierOptions;
  /** By id. The one that was heard longest ago is first. */
  readonly #senders = new Map<string, Sender>();
  /** Senders that were made until then, and are not known, may be forgotten ones. */
  #forgottenMs = 0;

  constructor(options: RequestVerifierOptions) {
    this.#options = options;
  }

  /**
   * @throws SandboxError fleet_peer_unknown for a request that no server of the fleet made for this one, or that came before;
   * fleet_unavailable for one that was meant for an earlier process of this server.
   */
  require(request: ProvenRequest, given: string | undefined): void {
    const [, secret = "", run = "", bornMs = "", id = "", number = "", proof = ""] =
      PROOF.exec(given ?? "") ?? [];
    const { secrets, server } = this.#options;
    const { identity, run: ownRun } = server();
    const sender = `${bornMs}-${id}`;
    const text = provenText(request, { identity, run, sender, number: Number(number) });
    if (secrets.proverOf(text, { [secret]: proof }) === undefined)
      throw new SandboxError(REASONS.fleet_peer_unknown, "only servers of the fleet are served here");
    if (run !== ownRun) throw unavailable("this server was started again meanwhile, please retry");
    if (!this.#isNew(id, Number(bornMs), Number(number)))
      throw new SandboxError(REASONS.fleet_peer_unknown, "this request of a server of the fleet came before");
  }

  /** Times of one sender are compared with each other: clocks of servers may be hours apart. */
  #isNew(id: string, bornMs: number, number: number): boolean {
    const known = this.#senders.get(id);
    if (bornMs < (known?.bornMs ?? this.#forgottenMs + 1)) return false;
    const sender = known?.bornMs === bornMs ? known : { bornMs, numbers: new SentNumbers() };
    this.#senders.delete(id);
    this.#senders.set(id, sender);
    if (this.#senders.size > MOST_SENDERS) this.#forgetOldest();
    return sender.numbers.take(number);
  }

  #forgetOldest(): void {
    const [[oldest, { bornMs }] = ["", { bornMs: 0 }]] = this.#senders;
    this.#senders.delete(oldest);
    this.#forgottenMs = Math.max(this.#forgottenMs, bornMs);
  }
}

function provenText(
  { method, path, listener, principal }: ProvenRequest,
  { identity, run, sender, number }: ServerRun & { readonly sender: string; readonly number: number },
): Proven {
  return ["request", identity, run, sender, number, method, path, listener ?? null, principal ?? null];
}

/** Numbers after the highest one that came may come so much later than it. */
const WINDOW = 16_384;
const BITS = 32;

/** The numbers that one sender has used, each of which is good once. They may come in another order. */
export class SentNumbers {
  readonly #seen = new Uint32Array(WINDOW / BITS);
  #highest = 0;

  /** @returns false for one that has come before, or is too old to tell. */
  take(number: number): boolean {
    if (number <= this.#highest - WINDOW) return false;
    if (number > this.#highest) this.#advance(number);
    else if (this.#has(number)) return false;
    this.#mark(number);
    return true;
  }

  /** The places of numbers that have left the window are for those that enter it. */
  #advance(to: number): void {
    if (to - this.#highest >= WINDOW) this.#seen.fill(0);
    else for (let next = this.#highest + 1; next <= to; next += 1) this.#clear(next);
    this.#highest = to;
  }

  #has(number: number): boolean {
    return (this.#word(number) & bitOf(number)) !== 0;
  }

  #mark(number: number): void {
    this.#seen[wordOf(number)] = this.#word(number) | bitOf(number);
  }

  #clear(number: number): void {
    this.#seen[wordOf(number)] = this.#word(number) & ~bitOf(number);
  }

  #word(number: number): number {
    return this.#seen[wordOf(number)] ?? 0;
  }
}

function wordOf(number: number): number {
  return Math.floor((number % WINDOW) / BITS);
}

function bitOf(number: number): number {
  return 1 << (number % BITS);
}
