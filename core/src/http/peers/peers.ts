import type { IncomingHttpHeaders, IncomingMessage } from "node:http";
import { createToken } from "../../kernel/token.js";
import { UnknownSandbox } from "../../sandbox/contract/sandbox-id.js";
import { CreatedElsewhere } from "../../sandbox/life/sandboxes.js";
import type { SandboxId } from "../../sandbox/contract/backend.js";
import type { EndedSandbox } from "../../sandbox/ledger/ledger.js";
import {
  type Principal,
  type RequestCarrier,
  requestOf,
  type SurfaceRequest,
  type Peer,
} from "../surfaces/surface-request.js";
import { keepBody } from "../messages/json-body.js";
import { tenantOf } from "../surfaces/permit.js";
import type { CreationContext } from "../creations/client-creations.js";
import { firstPage, type Page } from "../messages/input.js";

/** A name for something that one of several servers has. */
interface HeldName {
  readonly kind: string;
  /** An id, or a name that clients use. */
  readonly reference: string;
  /** Tenant of the request: for it, what others keep private does not exist. */
  readonly tenant: string;
}

/** A kind of things of which each server has its own, and whose names tell no server: templates, volumes. */
interface Holding {
  readonly kind: string;
  /** The surface whose routes name them. */
  readonly surface: string;
  /** The reference in a path, as it is there; undefined for other paths. */
  inPath(pathname: string): string | undefined;
  /** True when this server has it, and the tenant may know. Also for a reference that is none: it is refused here. */
  has(reference: string, tenant: string): boolean | Promise<boolean>;
}

/** A request for what another server has: it is passed on. */
class HeldElsewhere extends Error {
  override readonly name = "HeldElsewhere";
  readonly server: string;

  constructor(server: string) {
    super(`server '${server}' has it`);
    this.server = server;
  }
}

class Holdings {
  readonly #all: Holding[] = [];

  add(holding: Holding): void {
    this.#all.push(holding);
  }

  async has({ kind, reference, tenant }: HeldName): Promise<boolean> {
    for (const holding of this.#all)
      if (holding.kind === kind && (await holding.has(reference, tenant))) return true;
    return false;
  }

  /** What the path of a request names. */
  namedBy(request: SurfaceRequest): HeldName | undefined {
    for (const holding of this.#all) {
      if (holding.surface !== request.surface) continue;
      const found = holding.inPath(request.url.pathname);
      if (found !== undefined)
        return { kind: holding.kind, reference: decoded(found), tenant: tenantOf(request) };
    }
    return undefined;
  }
}

/** The text itself where it is not encoded well: its route refuses it. */
function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** What another server has told of a request that it passes on. */
export interface Arrival {
  /** Name of the listener that its client reached, whose surface serves it here. */
  readonly listener: string;
  /** Sender, as that server's guards named it; undefined where they named none or did not run: those of this server do. */
  readonly principal: Principal | undefined;
}

/** Finds the servers of sandboxes that this one does not have. */
interface PeerFinder {
  /** Name of the listener for requests of other servers. It serves nothing else. */
  readonly listener: string;
  /** @throws SandboxError while this server may not serve the sandboxes that it has. */
  requirePlace(): void;
  /** @throws SandboxError unless the sender is a peer. */
  arrivalOf(message: IncomingMessage): Arrival;
  /**
   * The server that has a sandbox; undefined when none has. @throws SandboxError while that cannot be told.
   * @param request whose client counts for what it looks up.
   */
  find(id: SandboxId, request: SurfaceRequest): Promise<Peer | undefined>;
  /** The server that says that a request is for one of its sandboxes, where the request does not tell which. */
  search(request: SurfaceRequest): Promise<Peer | undefined>;
  /** The server of a name that a placement chose. @throws SandboxError when it is gone. */
  named(server: string): Peer;
  /** The end of a sandbox whose server was lost. */
  endOf(id: SandboxId): EndedSandbox | undefined;
  /** Sends a GET request to all other servers. */
  gather(request: SurfaceRequest): Promise<Gathered>;
  /**
   * The name of another server that has something; undefined when all have answered that they do not.
   * @throws SandboxError when no server has it and one did not answer.
   */
  holderOf(held: HeldName, request: SurfaceRequest): Promise<string | undefined>;
  /** The name of another server for what none has yet; undefined where this one may get it. */
  makerOfNew(): string | undefined;
}

/** The answers of all other servers to one request. */
interface Gathered {
  /** Of those that answered with 200 and JSON. */
  readonly answers: readonly { readonly headers: IncomingHttpHeaders; readonly body: unknown }[];
  /** Names of the others. */
  readonly unreached: readonly string[];
}

/** Other servers, where a plugin knows some. */
export interface Peers {
  /** Sets the finder, once. */
  use(finder: PeerFinder): void;
  /** What all other servers answer to a GET request; nothing for one that another server has passed on. */
  gather(carrier: RequestCarrier): Promise<Gathered>;
  /** Adds a kind of things that requests name: those for another server's are passed on to it. */
  hold(holding: Holding): void;
  /** True when this server has something. */
  has(held: HeldName): Promise<boolean>;
  /**
   * Returns unless another server has what the body of a request names.
   * @throws HeldElsewhere, which is for the surface; SandboxError while that cannot be told.
   */
  requireHere(carrier: RequestCarrier, held: Pick<HeldName, "kind" | "reference">): Promise<void>;
  /** As `requireHere`, for a request that makes it where none has it: this server may be one that gets nothing new. */
  requireMaker(carrier: RequestCarrier, held: Pick<HeldName, "kind" | "reference">): Promise<void>;
}

const NOTHING: Gathered = { answers: [], unreached: [] };

export const Peers = createToken<Peers>("peers");

/** The finder of this server, if it has one. */
export class KnownPeers implements Peers {
  #finder: PeerFinder | undefined;
  readonly #holdings = new Holdings();

  use(finder: PeerFinder): void {
    if (this.#finder !== undefined) throw new Error("another plugin knows the peers of this server");
    this.#finder = finder;
  }

  /** @throws SandboxError while this server may not serve the sandboxes that it has. */
  requirePlace(): void {
    this.#finder?.requirePlace();
  }

  /** Undefined at a listener for clients. @throws SandboxError */
  arrivalAt(listener: string, message: IncomingMessage): Arrival | undefined {
    return this.#finder?.listener === listener ? this.#finder.arrivalOf(message) : undefined;
  }

  /** Keeps what passing a request on later takes: its handler may find out that it is for another server. */
  prepare({ isPassedOn, target }: SurfaceRequest, message: IncomingMessage): void {
    if (this.#finder !== undefined && !isPassedOn && target === undefined) keepBody(message);
  }

  async find(id: SandboxId, request: SurfaceRequest): Promise<Peer | undefined> {
    return this.#finder?.find(id, request);
  }

  async search(request: SurfaceRequest): Promise<Peer | undefined> {
    return this.#finder?.search(request);
  }

  endOf(id: SandboxId): EndedSandbox | undefined {
    return this.#finder?.endOf(id);
  }

  async gather(carrier: RequestCarrier): Promise<Gathered> {
    const request = requestOf(carrier);
    return request.isPassedOn ? NOTHING : (this.#finder?.gather(request) ?? NOTHING);
  }

  hold(holding: Holding): void {
    this.#holdings.add(holding);
  }

  has(held: HeldName): Promise<boolean> {
    return this.#holdings.has(held);
  }

  /**
   * The server that has what the path of a request names; undefined when this one has it, or none.
   * @param sandboxId what may be one in the path. No sandbox of this server has it.
   * @throws SandboxError
   */
  async holderOf(request: SurfaceRequest, sandboxId: SandboxId | undefined): Promise<Peer | undefined> {
    const finder = this.#finder;
    if (finder === undefined || request.isPassedOn) return undefined;
    const held = this.#holdings.namedBy(request);
    if (held !== undefined && (await this.has(held))) return undefined;
    const owner = sandboxId === undefined ? undefined : await finder.find(sandboxId, request);
    if (owner !== undefined || held === undefined) return owner;
    const server = await finder.holderOf(held, request);
    return server === undefined ? undefined : finder.named(server);
  }

  async requireHere(carrier: RequestCarrier, held: Pick<HeldName, "kind" | "reference">): Promise<void> {
    await this.#requireOne(requestOf(carrier), held);
  }

  async requireMaker(carrier: RequestCarrier, held: Pick<HeldName, "kind" | "reference">): Promise<void> {
    await this.#requireOne(requestOf(carrier), held, this.#finder?.makerOfNew());
  }

  /** @param maker server of what none has */
  async #requireOne(
    request: SurfaceRequest,
    { kind, reference }: Pick<HeldName, "kind" | "reference">,
    maker?: string,
  ): Promise<void> {
    const held = { kind, reference, tenant: tenantOf(request) };
    if (request.isPassedOn || (await this.has(held))) return;
    const server = (await this.#finder?.holderOf(held, request)) ?? maker;
    if (server !== undefined) throw new HeldElsewhere(server);
  }

  /** The server that a request is for, by the error that it ended with here; undefined when that is its answer. */
  async ofError(error: unknown, request: SurfaceRequest): Promise<Peer | undefined> {
    if (request.isPassedOn) return undefined;
    if (error instanceof CreatedElsewhere || error instanceof HeldElsewhere)
      return this.#finder?.named(error.server);
    return error instanceof UnknownSandbox ? this.find(error.sandboxId, request) : undefined;
  }
}

/** What all other servers answer to a request of a list. Its client is told of those that did not. */
export async function gatherAnswers(
  ctx: CreationContext,
  peers: Pick<Peers, "gather">,
): Promise<Gathered["answers"]> {
  const { answers, unreached } = await peers.gather(ctx);
  if (unreached.length > 0) ctx.res.setHeader("X-Unreached-Servers", unreached.join(", "));
  return answers;
}

interface MergedPageOptions<T> {
  readonly limit: number;
  readonly compare: (a: T, b: T) => number;
  readonly tokenOf: (last: T) => string;
}

/**
 * The page of a list that all servers have a part in: each has sent its own page of the same query.
 * @param others of the answers of the other servers.
 */
export function mergedPage<T>(
  own: Page<T>,
  answers: Gathered["answers"],
  others: readonly T[],
  { limit, compare, tokenOf }: MergedPageOptions<T>,
): Page<T> {
  const page = firstPage([...own.entries, ...others].toSorted(compare), limit, tokenOf);
  const last = page.entries.at(-1);
  const hasMore =
    own.nextToken !== undefined || answers.some(({ headers }) => headers["x-next-token"] !== undefined);
  return hasMore && last !== undefined ? { entries: page.entries, nextToken: tokenOf(last) } : page;
}
