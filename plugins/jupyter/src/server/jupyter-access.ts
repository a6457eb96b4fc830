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
  withReason,
} from "@coppice/core";

/** Paths below this prefix belong to one sandbox's Jupyter server. */
export const SANDBOX_PREFIX = "/sandboxes/:sandboxId/jupyter";

const SANDBOX_PATH = /^\/sandboxes\/([^/]*)\/jupyter(?:\/|$)/;
const AUTHORIZATION = /^(?:token|bearer) +(\S+)$/i;

/**
 * Finds the sandbox of `/sandboxes/<id>/jupyter/…`, on every listener but the operator's.
 * @param port of a sandbox that the surface answers.
 */
export function jupyterTarget(sandboxes: Pick<Sandboxes, "find">, port: number): TargetResolver {
  return async (message, url, listener) => {
    const asked = SANDBOX_PATH.exec(url.pathname)?.[1];
    if (asked === undefined || listener.name === "ops") return undefined;
    // Some clients still send the long form `<id>-<client id>`.
    const [id = ""] = asked.split("-");
    const sandbox = sandboxes.find(id);
    if (sandbox === undefined || !sandbox.isReachable) {
      // Takes as long as for an existing sandbox, and gets the answer of a wrong token.
      isPresented(randomBytes(16).toString("hex"), { headers: message.headers, url });
      return { sandboxId: id, refusal: refusal({ url, id }) };
    }
    return { sandbox, port };
  };
}

/**
 * Requires the sandbox's token: `X-Access-Token`, `Authorization: token …`, or `?token=`, which browsers need for a
 * WebSocket. A sandbox without a token is open, but not to foreign web pages, which reach loopback from the user's own
 * machine.
 */
export const jupyterGuard: Guard = ({ target, url, headers }) => {
  if (target === undefined) throw new SandboxError("sandbox_not_found", "the request names no sandbox");
  const { id, accessToken } = target.sandbox.record;
  const named = SANDBOX_PATH.exec(url.pathname)?.[1];
  // The headers name one sandbox, the path another.
  if (named !== undefined && named.split("-")[0] !== id) throw refusal({ url, id });
  if (accessToken === undefined) {
    if (headers.origin !== undefined && !isLocalClient(headers))
      throw new SandboxError("origin_not_allowed", "this sandbox has no token: it is not for web pages");
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

/** One answer for unknown sandboxes and wrong tokens, in the form in which the request named the sandbox. */
function refusal({ url, id }: { readonly url: URL; readonly id: string }): HttpError {
  if (SANDBOX_PATH.test(url.pathname)) {
    // The reason is set here, because an answer before routing would lack it: both answers must be the same.
    const text = "There is no such sandbox, or the token is not its own";
    return withReason(new HttpError(404, text, { reason: "sandbox_not_found" }));
  }
  return sandboxNotFound(id);
}
