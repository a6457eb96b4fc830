import { randomBytes } from "node:crypto";
import {
  HttpError,
  isLocalClient,
  sandboxNotFound,
  SandboxError,
  type Guard,
  type Sandboxes,
  type SurfaceRequest,
  type TargetResolver,
  secretEqual,
} from "@coppice/core";

/** Below this path everything is of one sandbox's Jupyter server; `:sandboxId` names it. */
export const SANDBOX_PREFIX = "/sandboxes/:sandboxId/jupyter";

const SANDBOX_PATH = /^\/sandboxes\/([^/]*)\/jupyter(?:\/|$)/;
const AUTHORIZATION = /^(?:token|bearer) +(\S+)$/i;

export interface JupyterTargetOptions {
  readonly sandboxes: Pick<Sandboxes, "find">;
  /** The port of a sandbox that the surface answers. */
  readonly port: number;
}

/** Finds the sandbox that `/sandboxes/<id>/jupyter/…` names, on every listener but that of the operator. */
export function jupyterTarget({ sandboxes, port }: JupyterTargetOptions): TargetResolver {
  return async (message, url, listener) => {
    const asked = SANDBOX_PATH.exec(url.pathname)?.[1];
    if (asked === undefined || listener.name === "ops") return undefined;
    // Some clients still send the long form `<id>-<client id>`.
    const [id = ""] = asked.split("-");
    const sandbox = sandboxes.find(id);
    if (sandbox === undefined || !sandbox.isReachable) {
      // As much work as for a sandbox that is there, and the answer of a wrong token.
      isPresented(randomBytes(16).toString("hex"), { headers: message.headers, url });
      throw refusal({ url, id });
    }
    return { sandbox, port };
  };
}

/**
 * Lets in who presents the sandbox's token: `X-Access-Token`, `Authorization: token …`, or `?token=`, as
 * browsers must for a WebSocket. A sandbox without a token is open, but not to web pages from elsewhere,
 * which reach loopback from the user's own machine.
 */
export const jupyterGuard: Guard = ({ target, url, headers }) => {
  if (target === undefined) throw new SandboxError("not_found", "the request names no sandbox");
  const { id, accessToken } = target.sandbox.record;
  const named = SANDBOX_PATH.exec(url.pathname)?.[1];
  // Addressed to one sandbox by its headers, and to another by its path.
  if (named !== undefined && named.split("-")[0] !== id) throw refusal({ url, id });
  if (accessToken === undefined) {
    if (headers.origin !== undefined && !isLocalClient(headers))
      throw new SandboxError("permission_denied", "this sandbox has no token: it is not for web pages");
    return;
  }
  if (!isPresented(accessToken, { headers, url })) throw refusal({ url, id });
};

function isPresented(token: string, { headers, url }: Pick<SurfaceRequest, "headers" | "url">): boolean {
  const { "x-access-token": header, authorization } = headers;
  const presented =
    (typeof header === "string" && header !== "" ? header : undefined) ??
    AUTHORIZATION.exec(authorization ?? "")?.[1] ??
    url.searchParams.get("token") ??
    "";
  return secretEqual(token, presented);
}

/** Answer for both "no such sandbox" and "not your sandbox", in the form in which the request addressed it. */
function refusal({ url, id }: { readonly url: URL; readonly id: string }): HttpError {
  if (SANDBOX_PATH.test(url.pathname)) {
    return new HttpError(404, "There is no such sandbox, or the token is not its own");
  }
  return sandboxNotFound(id);
}
