import { randomBytes } from "node:crypto";
import {
  type Guard,
  isLocalClient,
  SandboxError,
  sandboxNotFound,
  type Sandboxes,
  secretEqual,
  type SurfaceRequest,
  type TargetResolver,
} from "@coppice/core";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import { unknownSandbox } from "./shell-errors.js";

/** Paths below this prefix belong to one sandbox. */
const SANDBOX_PREFIX = "/sandboxes/:sandboxId/shell";
/** For clients that send no header: the sandbox's token is a segment of the path. */
const TOKEN_PREFIX = "/t/:accessToken";

const SANDBOX_PATH = /^\/sandboxes\/([^/]*)\/shell(?:\/|$)/;
const TOKEN_PATH = /^(?:\/sandboxes\/[^/]*\/shell)?\/t\/([^/]*)(?:\/|$)/;
const BEARER = /^bearer +(\S+)$/i;

type Presented = Pick<SurfaceRequest, "headers" | "url">;

/** Access to sandboxes, and the paths at which they are reached. */
export class ShellAccess {
  readonly #config: Pick<ShellSessionsConfig, "port" | "authorization" | "pathTokens">;

  constructor(config: Pick<ShellSessionsConfig, "port" | "authorization" | "pathTokens">) {
    this.#config = config;
  }

  /** What the paths of routes begin with. */
  get prefixes(): readonly string[] {
    const plain = ["", SANDBOX_PREFIX];
    return this.#config.pathTokens ? [...plain, ...plain.map((prefix) => prefix + TOKEN_PREFIX)] : plain;
  }

  /** Finds the sandbox of `/sandboxes/<id>/shell/…`, on every listener but the operator's. */
  target(sandboxes: Pick<Sandboxes, "find">): TargetResolver {
    return async (message, url, listener) => {
      const id = SANDBOX_PATH.exec(url.pathname)?.[1];
      if (id === undefined || listener.name === "ops") return undefined;
      const sandbox = sandboxes.find(id);
      if (sandbox === undefined || !sandbox.isReachable) {
        // Takes as long as for an existing sandbox, and gets the answer of a wrong token.
        this.#isPresented(randomBytes(16).toString("hex"), { headers: message.headers, url });
        return { sandboxId: id, refusal: unknownSandbox() };
      }
      return { sandbox, port: this.#config.port };
    };
  }

  /**
   * Requires the sandbox's token. A sandbox without a token is open, but not to foreign web pages, which reach loopback
   * from the user's own machine.
   */
  readonly guard: Guard = ({ target, url, headers }) => {
    if (target === undefined) throw new SandboxError("sandbox_not_found", "the request names no sandbox");
    const { id, accessToken } = target.sandbox.record;
    const named = SANDBOX_PATH.exec(url.pathname)?.[1];
    const refusal = (): Error => (named === undefined ? sandboxNotFound(id) : unknownSandbox());
    // The headers name one sandbox, the path another.
    if (named !== undefined && named !== id) throw refusal();
    if (accessToken === undefined) {
      if (headers.origin !== undefined && !isLocalClient(headers))
        throw new SandboxError("origin_not_allowed", "this sandbox has no token: it is not for web pages");
      return;
    }
    if (!this.#isPresented(accessToken, { headers, url })) throw refusal();
  };

  /**
   * Session that `Authorization: Bearer`, `X-Session-Id` or the query names. What was presented as the sandbox's token
   * is no session: the header is one only where the token came by `X-Access-Token` or the path, or there is none.
   */
  sessionOf(accessToken: string | undefined, { headers, url }: Presented): string | undefined {
    const bearer = BEARER.exec(headers.authorization ?? "")?.[1];
    const isToken =
      accessToken !== undefined && bearer !== undefined && this.#presented({ headers, url }) === bearer;
    const header = headers["x-session-id"];
    const { searchParams } = url;
    const named = [
      isToken ? undefined : bearer,
      typeof header === "string" ? header : undefined,
      searchParams.get("session"),
      searchParams.get("sessionId"),
    ];
    return named.find((id) => id !== undefined && id !== null && id !== "") ?? undefined;
  }

  #isPresented(token: string, request: Presented): boolean {
    return secretEqual(token, this.#presented(request) ?? "");
  }

  #presented({ headers, url }: Presented): string | undefined {
    const { "x-access-token": header, authorization } = headers;
    if (typeof header === "string" && header !== "") return header;
    const { pathTokens, authorization: meaning } = this.#config;
    const inPath = pathTokens ? TOKEN_PATH.exec(url.pathname)?.[1] : undefined;
    if (inPath !== undefined) return inPath;
    return meaning === "token" ? BEARER.exec(authorization ?? "")?.[1] : undefined;
  }
}
