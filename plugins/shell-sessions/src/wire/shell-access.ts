import { accessTokenOf, type SurfaceRequest } from "@coppice/core";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";

/** Paths below this prefix belong to one sandbox. */
const SANDBOX_PREFIX = "/sandboxes/:sandboxId/shell";
/** For clients that send no header: the sandbox's token is a segment of the path. */
const TOKEN_PREFIX = "/t/:accessToken";

const TOKEN_PATH = /^(?:\/sandboxes\/[^/]*\/shell)?\/t\/([^/]*)(?:\/|$)/;
const BEARER = /^bearer +(\S+)$/i;

type Presented = Pick<SurfaceRequest, "headers" | "url">;

/** Paths of routes, and the token and the session that a request presents. */
export class ShellAccess {
  readonly #config: Pick<ShellSessionsConfig, "authorization" | "pathTokens">;

  constructor(config: Pick<ShellSessionsConfig, "authorization" | "pathTokens">) {
    this.#config = config;
  }

  /** What the paths of routes begin with. */
  get prefixes(): readonly string[] {
    const plain = ["", SANDBOX_PREFIX];
    return this.#config.pathTokens ? [...plain, ...plain.map((prefix) => prefix + TOKEN_PREFIX)] : plain;
  }

  /**
   * Session that `Authorization: Bearer`, `X-Session-Id` or the query names. What was presented as the sandbox's token
   * is no session: the header is one only where the token came by `X-Access-Token` or the path, or there is none.
   */
  sessionOf(accessToken: string | undefined, { headers, url }: Presented): string | undefined {
    const bearer = BEARER.exec(headers.authorization ?? "")?.[1];
    const isToken =
      accessToken !== undefined && bearer !== undefined && this.presented({ headers, url }) === bearer;
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

  /** Token of the sandbox that a request presents. */
  readonly presented = ({ headers, url }: Presented): string | undefined => {
    const token = accessTokenOf(headers);
    if (token !== undefined) return token;
    const { pathTokens, authorization: meaning } = this.#config;
    const inPath = pathTokens ? TOKEN_PATH.exec(url.pathname)?.[1] : undefined;
    if (inPath !== undefined) return inPath;
    return meaning === "token" ? BEARER.exec(headers.authorization ?? "")?.[1] : undefined;
  };
}
