import { randomBytes } from "node:crypto";
import type { IncomingHttpHeaders } from "node:http";
import { SandboxError } from "../../kernel/errors.js";
import { secretEqual } from "../../kernel/secrets.js";
import type { Sandboxes } from "../../sandbox/life/sandboxes.js";
import { isLocalClient } from "../clients/local-client.js";
import { sandboxNotFound } from "../messages/edge-refusal.js";
import type { Guard, SurfaceRequest } from "../surfaces/surface-request.js";
import type { Targets } from "../surfaces/targets.js";

interface SandboxPathOptions {
  readonly targets: Pick<Targets, "add" | "claimPort">;
  readonly sandboxes: Pick<Sandboxes, "find">;
  /** Surface that answers the port of every sandbox, and the paths below `/sandboxes/<id>/<surface>`. */
  readonly surface: string;
  readonly port: number;
  /** Token of a sandbox that a request presents. */
  readonly presented: (request: Pick<SurfaceRequest, "headers" | "url">) => string | undefined;
  /** Answer below the path both for a sandbox that does not exist, and for a wrong token. */
  readonly refusal: () => Error;
}

/** `X-Access-Token` of a request; an empty one counts as none. */
export function accessTokenOf(headers: IncomingHttpHeaders): string | undefined {
  const token = headers["x-access-token"];
  return typeof token === "string" && token !== "" ? token : undefined;
}

/**
 * Leads requests at `/sandboxes/<id>/<surface>/…` to a surface on every listener but the operator's, as those at its port.
 * @returns the guard of the surface. It requires the sandbox's token; a sandbox without a token is open, but not to
 * foreign web pages, which reach loopback from the user's own machine.
 */
export function serveSandboxPath(options: SandboxPathOptions): Guard {
  const { targets, sandboxes, surface, port, presented, refusal } = options;
  const path = new RegExp(`^/sandboxes/([^/]*)/${surface}(?:/|$)`);
  // Some clients still send the long form `<id>-<client id>`.
  const idIn = ({ pathname }: URL): string | undefined => path.exec(pathname)?.[1]?.split("-")[0];
  const presents = (token: string, request: Pick<SurfaceRequest, "headers" | "url">): boolean =>
    secretEqual(token, presented(request) ?? "");

  targets.claimPort(port, surface);
  targets.add(async ({ headers }, url, listener) => {
    const id = idIn(url);
    if (id === undefined || listener.name === "ops") return undefined;
    const sandbox = sandboxes.find(id);
    if (sandbox?.isReachable === true) return { sandbox, port };
    // Takes as long as for an existing sandbox, and gets the answer of a wrong token.
    presents(randomBytes(16).toString("hex"), { headers, url });
    return { sandboxId: id, refusal: refusal() };
  });
  return ({ target, url, headers }) => {
    if (target === undefined) throw new SandboxError("sandbox_not_found", "the request names no sandbox");
    const { id, accessToken } = target.sandbox.record;
    const named = idIn(url);
    // The headers name one sandbox, the path another.
    if (named !== undefined && named !== id) throw refusal();
    if (accessToken === undefined) {
      if (headers.origin === undefined || isLocalClient(headers)) return;
      throw new SandboxError("origin_not_allowed", "this sandbox has no token: it is not for web pages");
    }
    if (!presents(accessToken, { headers, url })) throw named === undefined ? sandboxNotFound(id) : refusal();
  };
}

/**
 * The account in `Authorization: Basic base64("<user>:")`; undefined for an absent header, another scheme, or an empty
 * name.
 */
export function basicUser(authorization: string | null | undefined): string | undefined {
  const encoded = /^basic\s+([A-Za-z0-9+/_=-]+)\s*$/i.exec(authorization ?? "")?.[1];
  if (encoded === undefined) return undefined;
  const credentials = Buffer.from(encoded, "base64").toString("utf8");
  const separator = credentials.indexOf(":");
  return (separator < 0 ? credentials : credentials.slice(0, separator)) || undefined;
}
