import { SandboxError, type SurfaceRequest, secretEqual } from "@coppice/core";

/** The token of a request; an empty header counts as none. */
export function presentedToken({ headers }: Pick<SurfaceRequest, "headers">): string | undefined {
  const token = headers["x-access-token"];
  return typeof token === "string" && token !== "" ? token : undefined;
}

/** @throws SandboxError unauthenticated unless the request presents this token. */
export function requireToken(request: Pick<SurfaceRequest, "headers">, token: string): void {
  const presented = presentedToken(request);
  if (presented !== undefined && secretEqual(token, presented)) return;
  throw new SandboxError(
    "access_token_invalid",
    "unauthorized access, please provide a valid access token or method signing if supported",
  );
}
