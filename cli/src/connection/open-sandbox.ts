import { ApiClient, ConnectionConfig, Sandbox } from "e2b";
import { connectionOf, type ServerOptions } from "./connection.js";

/**
 * A sandbox for use, a paused one resumed. `Sandbox.connect` alone would put off the end of a running one.
 * @throws Error with the status of the server's refusal
 */
export async function openSandbox(id: string, server: ServerOptions): Promise<Sandbox> {
  const found = await describeSandbox(id, server);
  const connection = connectionOf(server);
  if (found.state === "paused") return Sandbox.connect(id, connection);
  const { envdVersion, envdAccessToken, domain } = found;
  return new Sandbox({
    ...connection,
    sandboxId: id,
    envdVersion,
    ...(envdAccessToken !== undefined && { envdAccessToken }),
    ...(typeof domain === "string" && { sandboxDomain: domain }),
  });
}

/** What the server says of a sandbox. @throws as `openSandbox` */
export async function describeSandbox(id: string, server: ServerOptions) {
  const path = { sandboxID: id };
  const { data, error } = await apiOf(server).GET("/sandboxes/{sandboxID}", { params: { path } });
  if (data === undefined) throw refused(error);
  return data;
}

export function apiOf(server: ServerOptions): ApiClient["api"] {
  return new ApiClient(new ConnectionConfig(connectionOf(server))).api;
}

/** A refusal with its status. */
export function refused({ message, code }: { readonly message: string; readonly code: number }): Error {
  return Object.assign(new Error(message), { status: code });
}
