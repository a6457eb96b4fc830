import type { IncomingHttpHeaders, IncomingMessage } from "node:http";
import { secretEqual, isDigestOf } from "../../kernel/secrets.js";
import type { Guard, SurfaceRequest, Target, Peer } from "../surfaces/surface-request.js";
import { describeEnd } from "../../sandbox/model/describe-end.js";
import type { SandboxRecord } from "../../sandbox/model/live-sandbox.js";
import type { Sandboxes } from "../../sandbox/life/sandboxes.js";
import { EdgeRefusal, sandboxNotFound } from "../messages/edge-refusal.js";
import { HttpError } from "../messages/http-error.js";
import type { Surfaces } from "../surfaces/surfaces.js";
import type { KnownPeers } from "../peers/peers.js";
import { accessTokenOf } from "./sandbox-path.js";
import {
  type Listener,
  type TargetQuestion,
  type TargetResolver,
  type Targets,
  ENVD_PORT,
} from "../surfaces/targets.js";
import type { SandboxId } from "../../sandbox/contract/backend.js";
import type { Reason } from "../../kernel/reasons.js";

interface TargetingOptions {
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

/** Events of a sandbox are with several servers, in turn. */
const SANDBOX = /(?<!^\/events)\/sandboxes\/([a-z0-9]+)(?:-[a-z0-9]+)?(?:\/|$)/;

/** The sandbox that the path of a request to an API names: all of them have it after `/sandboxes/`. */
function sandboxInPath(pathname: string): SandboxId | undefined {
  return SANDBOX.exec(pathname)?.[1];
}

/** Header with the secret of a sandbox without public traffic. */
export const TRAFFIC_TOKEN_HEADER = "e2b-traffic-access-token";

/**
 * Requires the secret for the ports of a sandbox without public traffic; envd's port has its own token.
 * @throws HttpError 403 with the texts of the E2B edge.
 */
export function requireTrafficToken({ sandbox, port }: Target, headers: IncomingHttpHeaders): void {
  const { id, trafficAccessToken } = sandbox.record;
  if (trafficAccessToken === undefined || port === ENVD_PORT) return;
  const given = headers[TRAFFIC_TOKEN_HEADER];
  if (typeof given === "string" && secretEqual(trafficAccessToken, given)) return;
  const [which, what] =
    typeof given !== "string" || given === ""
      ? ["Missing", `Token header '${TRAFFIC_TOKEN_HEADER}' is missing`]
      : ["Invalid", `Provided token in header '${TRAFFIC_TOKEN_HEADER}' is invalid`];
  throw new EdgeRefusal(403, {
    reason: "traffic_token_invalid",
    sandboxId: id,
    message: `Sandbox is secured with traffic access token. ${what}`,
    title: `${which} Traffic Access Token`,
  });
}

/** A sandbox and a port as a request names them, not yet checked to exist. */
interface Address {
  readonly sandboxId: string;
  readonly port: number;
}

const SANDBOX_ID = /^[a-z0-9]+$/;
/** Name of the one shared sandbox in debug mode of the SDKs. The listener's port names the surface. */
const DEBUG_SANDBOX_ID = "debug_sandbox_id";

/**
 * The sandbox that a request is addressed to: by the headers `E2b-Sandbox-Id` and `E2b-Sandbox-Port`, else by `Host:
 * <port>-<id>.<domain>`. Undefined when it names none.
 * @throws HttpError 400 with the text of the E2B edge.
 */
export function addressOf(headers: IncomingHttpHeaders, domain: string): Address | undefined {
  const id = headers["e2b-sandbox-id"];
  const port = headers["e2b-sandbox-port"];
  if (namesDebugSandbox(headers)) return undefined;
  if (id !== undefined || port !== undefined) {
    if (typeof id !== "string" || typeof port !== "string")
      throw invalidAddress("host_invalid", "missing header");
    return parse(port, id);
  }
  const host = (headers.host ?? "").replace(/:\d*$/, "").toLowerCase();
  const suffix = `.${domain}`;
  if (!host.endsWith(suffix)) return undefined;
  const label = host.slice(0, -suffix.length);
  if (label === "api" || label === "sandbox") return undefined;
  const [portLabel, idLabel] = label.split("-");
  if (portLabel === undefined || idLabel === undefined || label.includes(".")) {
    throw invalidAddress("host_invalid", "Invalid host");
  }
  return parse(portLabel, idLabel);
}

/** The refusal of a wrong address, as the text of the E2B edge. */
function invalidAddress(reason: Reason, text: string): HttpError {
  return new HttpError(400, text, { reason, body: text });
}

/** True for requests of the SDKs in debug mode. */
function namesDebugSandbox(headers: IncomingHttpHeaders): boolean {
  return headers["e2b-sandbox-id"] === DEBUG_SANDBOX_ID;
}

function parse(port: string, sandboxId: string): Address {
  // Some clients still send the long form `<id>-<client id>`.
  const [id = ""] = sandboxId.split("-");
  if (!SANDBOX_ID.test(id)) throw invalidAddress("sandbox_id_invalid", "Invalid sandbox ID");
  const number = /^\d{1,5}$/.test(port) ? Number(port) : 0;
  if (number < 1 || number > 65535) throw invalidAddress("port_invalid", "Invalid sandbox port");
  return { sandboxId: id, port: number };
}
