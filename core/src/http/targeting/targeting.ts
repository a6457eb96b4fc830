import type { IncomingMessage } from "node:http";
import type { Guard } from "../surfaces/surface-hooks.js";
import { describeEnd } from "../../sandbox/model/describe-end.js";
import { isDigestOf } from "../../sandbox/backends/sandbox-secrets.js";
import type { Sandboxes } from "../../sandbox/life/sandboxes.js";
import { sandboxNotFound } from "../messages/edge-refusal.js";
import type { HttpError } from "../messages/http-error.js";
import type { SurfaceRequest, Target } from "../surfaces/surface-request.js";
import type { Surfaces } from "../surfaces/surfaces.js";
import { addressOf, invalidAddress, namesDebugSandbox } from "./target.js";
import type { Listener, TargetResolver, Targets } from "../surfaces/targets.js";

export class Targeting implements Targets {
  readonly #domain: string;
  readonly #sandboxes: Pick<Sandboxes, "find" | "use" | "endOf">;
  readonly #surfaces: Pick<Surfaces, "claimPort">;
  readonly #resolvers: TargetResolver[] = [];
  readonly #guards: Guard[] = [];

  constructor(
    domain: string,
    sandboxes: Pick<Sandboxes, "find" | "use" | "endOf">,
    surfaces: Pick<Surfaces, "claimPort">,
  ) {
    this.#surfaces = surfaces;
    this.#domain = domain;
    this.#sandboxes = sandboxes;
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
    this.#surfaces.claimPort(port, surface);
  }

  /**
   * @throws HttpError 400 for an invalid address, 502 for a sandbox that does not serve. One answer stands for unknown,
   * ended and foreign ones alike; with the token of an ended one it says how it ended.
   */
  async find(message: IncomingMessage, url: URL, listener: Listener): Promise<Target | undefined> {
    const address = addressOf(message.headers, this.#domain);
    if (address !== undefined) {
      const sandbox = this.#sandboxes.find(address.sandboxId);
      if (sandbox === undefined) throw await this.#lost(address.sandboxId, message);
      if (!sandbox.isReachable) throw sandboxNotFound(address.sandboxId);
      return { sandbox, port: address.port };
    }
    for (const resolve of this.#resolvers) {
      const target = await resolve(message, url, listener);
      if (target !== undefined) return target;
    }
    // These listeners serve traffic of sandboxes alone.
    if (listener.name === "envd" || listener.name === "code")
      throw invalidAddress("host_invalid", "Invalid host");
    // Only those two listeners imply the sandbox. Elsewhere the request would be taken for one of the control plane.
    if (namesDebugSandbox(message.headers)) throw invalidAddress("sandbox_id_invalid", "Invalid sandbox ID");
    return undefined;
  }

  /**
   * Notes the use by an authorized request, which may resume the sandbox.
   * @returns the function to call when the request is done.
   * @throws HttpError 502 for a sandbox that ended since it was found, and for the health check of a paused one: asking
   * must not change the answer.
   */
  async use({ sandbox }: Target, { surface, method, url }: SurfaceRequest): Promise<() => void> {
    if (sandbox.ended.aborted) throw sandboxNotFound(sandbox.record.id);
    const isProbe = surface !== "proxy" && method === "GET" && url.pathname === "/health";
    if (!isProbe) return this.#sandboxes.use(sandbox);
    if (sandbox.record.state !== "running") throw sandboxNotFound(sandbox.record.id);
    return () => {};
  }

  async #lost(sandboxId: string, { headers }: IncomingMessage): Promise<HttpError> {
    const token = headers["x-access-token"];
    if (typeof token !== "string") return sandboxNotFound(sandboxId);
    const ended = await this.#sandboxes.endOf(sandboxId).catch(() => undefined);
    const isOwner = ended?.accessTokenDigest !== undefined && isDigestOf(ended.accessTokenDigest, token);
    return sandboxNotFound(sandboxId, isOwner ? describeEnd(ended) : undefined);
  }
}
