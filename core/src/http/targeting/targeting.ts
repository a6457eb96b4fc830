import type { IncomingHttpHeaders, IncomingMessage } from "node:http";
import { secretEqual } from "../../kernel/secret-equal.js";
import type { Guard } from "../surfaces/surface-hooks.js";
import { describeEnd } from "../../sandbox/model/describe-end.js";
import { isDigestOf } from "../../sandbox/backends/sandbox-secrets.js";
import type { SandboxRecord } from "../../sandbox/model/live-sandbox.js";
import type { Sandboxes } from "../../sandbox/life/sandboxes.js";
import { EdgeRefusal, sandboxNotFound } from "../messages/edge-refusal.js";
import type { HttpError } from "../messages/http-error.js";
import type { SurfaceRequest, Target } from "../surfaces/surface-request.js";
import type { Surfaces } from "../surfaces/surfaces.js";
import type { KnownPeers } from "../peers/peers.js";
import type { Peer } from "../surfaces/peer.js";
import { accessTokenOf } from "./sandbox-path.js";
import { sandboxInPath } from "../peers/sandbox-in-path.js";
import { type Address, addressOf, invalidAddress, namesDebugSandbox } from "./target.js";
import type { Listener, TargetQuestion, TargetResolver, Targets } from "../surfaces/targets.js";

export interface TargetingOptions {
  readonly domain: string;
  readonly sandboxes: Pick<Sandboxes, "find" | "use">;
  /** How a sandbox of any server ended. */
  readonly endOf: Sandboxes["endOf"];
  readonly surfaces: Pick<Surfaces, "claimPort">;
  readonly peers: Pick<KnownPeers, "find" | "search" | "holderOf">;
}

export class Targeting implements Targets {
  readonly #options: TargetingOptions;
  readonly #resolvers: TargetResolver[] = [];
  readonly #guards: Guard[] = [];

  constructor(options: TargetingOptions) {
    this.#options = options;
  }

  add(resolver: TargetResolver): void {
    this.#resolvers.push(resolver);
  }

  guard(check: Guard): void {
    this.#guards.push(check);
  }

  /** Runs the guards of requests addressed to a sandbox. @throws what they throw. */
  async authorize(request: SurfaceRequest): Promise<void> {
    for (const check of this.#guards) await check(request);
  }

  claimPort(port: number, surface: string): void {
    this.#options.surfaces.claimPort(port, surface);
  }

  /**
   * The sandbox that a request is addressed to, or the server that has it.
   * @throws HttpError 400 for an invalid address, 502 for a sandbox that does not serve. One answer stands for unknown,
   * ended and foreign ones alike; with the token of an ended one it says how it ended.
   */
  async find(
    message: IncomingMessage,
    request: SurfaceRequest,
    listener: Listener,
  ): Promise<Target | Peer | undefined> {
    const address = addressOf(message.headers, this.#options.domain);
    if (address !== undefined) {
      const { sandboxId } = address;
      const target = this.#targetAt(address);
      if (target !== undefined) return target;
      const peer = await this.#options.peers.find(sandboxId, request);
      if (peer === undefined) throw await this.#lost(sandboxId, message);
      return peer;
    }
    for (const resolve of this.#resolvers) {
      const found = await resolve(message, request.url, listener);
      if (found === undefined) continue;
      if ("sandbox" in found) return found;
      const { sandboxId, refusal } = found;
      const { peers } = this.#options;
      const peer = await (sandboxId === undefined ? peers.search(request) : peers.find(sandboxId, request));
      if (peer === undefined) throw refusal;
      return peer;
    }
    // These listeners serve traffic of sandboxes alone.
    if (listener.name === "envd" || listener.name === "code")
      throw invalidAddress("host_invalid", "Invalid host");
    // Only those two listeners imply the sandbox. Elsewhere the request would be taken for one of the control plane.
    if (namesDebugSandbox(message.headers)) throw invalidAddress("sandbox_id_invalid", "Invalid sandbox ID");
    return undefined;
  }

  async findHere(question: TargetQuestion, url: URL, listener: string): Promise<Target | undefined> {
    const address = addressOf(question.headers, this.#options.domain);
    if (address !== undefined) {
      const target = this.#targetAt(address);
      if (target === undefined) throw sandboxNotFound(address.sandboxId);
      return target;
    }
    for (const resolve of this.#resolvers) {
      const found = await resolve(question, url, { name: listener, isLoopback: false });
      if (found === undefined) continue;
      if ("refusal" in found) throw found.refusal;
      return found;
    }
    return undefined;
  }

  /** The server that has what an authorized request to an API is about; undefined when this one has it, or none. */
  async peerOf(request: SurfaceRequest): Promise<Peer | undefined> {
    if (request.target !== undefined || request.isPassedOn) return undefined;
    const id = sandboxInPath(request.url.pathname);
    const isHere = id !== undefined && this.#options.sandboxes.find(id) !== undefined;
    return isHere ? undefined : this.#options.peers.holderOf(request, id);
  }

  #targetAt({ sandboxId, port }: Address): Target | undefined {
    const sandbox = this.#options.sandboxes.find(sandboxId);
    if (sandbox === undefined) return undefined;
    if (!sandbox.isReachable) throw sandboxNotFound(sandboxId);
    return { sandbox, port };
  }

  /**
   * Notes the use by an authorized request, which may resume the sandbox.
   * @returns the function to call when the request is done.
   * @throws HttpError 502 for a sandbox that ended since it was found, 403 for a health check that would resume one
   * without its token.
   */
  async use({ sandbox }: Target, request: SurfaceRequest): Promise<() => void> {
    if (sandbox.ended.aborted) throw sandboxNotFound(sandbox.record.id);
    const { surface, method } = request;
    const isProbe = surface !== "proxy" && method === "GET" && request.url.pathname === "/health";
    if (isProbe) {
      // Asking keeps no sandbox from its pause.
      if (sandbox.record.state === "running") return () => {};
      requireTokenToResume(sandbox.record, request.headers);
    }
    return this.#options.sandboxes.use(sandbox);
  }

  async #lost(sandboxId: string, { headers }: IncomingMessage): Promise<HttpError> {
    const token = accessTokenOf(headers);
    if (token === undefined) return sandboxNotFound(sandboxId);
    const ended = await this.#options.endOf(sandboxId).catch(() => undefined);
    const isOwner = ended?.accessTokenDigest !== undefined && isDigestOf(ended.accessTokenDigest, token);
    return sandboxNotFound(sandboxId, isOwner ? describeEnd(ended) : undefined);
  }
}

/** Health checks are open, but none may resume the sandbox of somebody else. @throws HttpError 403 */
function requireTokenToResume({ id, accessToken }: SandboxRecord, headers: IncomingHttpHeaders): void {
  if (accessToken === undefined || secretEqual(accessToken, accessTokenOf(headers) ?? "")) return;
  throw new EdgeRefusal(403, {
    reason: "access_token_invalid",
    sandboxId: id,
    title: "Sandbox Resume Denied",
    message:
      "This sandbox can't be resumed with the credentials provided. Check your access token and try again.",
  });
}
