import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { SCOPES } from "@coppice/core";
import type { ServedRoute, TestServer } from "@coppice/core/testing";
import { type Answer, exchange } from "../../harness/clients/exchange.js";
import { rawExchange } from "../../harness/clients/raw-exchange.js";
import { IdentityProvider } from "../../harness/server/identity-provider.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { type FullServerOptions, startFullServer } from "../../harness/server/start-full-server.js";

/** A client of a tenant. */
export interface Client {
  /** Its `Authorization`. */
  readonly authorization: string;
  ask(method: string, path: string, body?: string): Promise<Answer>;
  createSandbox(fields?: object): Promise<{
    readonly id: string;
    readonly token: string;
    /** Traffic token of a sandbox without public traffic. */
    readonly trafficToken: string | undefined;
  }>;
}

/** A whole server that takes the tokens of an identity provider, as every server of a fleet does. */
export interface TenantServer extends AsyncDisposable {
  readonly server: TestServer;
  /** A client with a new token, of all scopes unless it says others. */
  client(token: { readonly tenant: string; readonly scopes?: typeof SCOPES }): Client;
}

/** Starts a whole server of the backend that isolates, where this host has it: only that has snapshots. */
export async function startTenantServer(
  options: Pick<FullServerOptions, "server" | "settings"> = {},
): Promise<TenantServer> {
  const directory = await mkdtemp(join(tmpdir(), "coppice-tenants-"));
  const dataDir = join(directory, "data");
  const backend = missingForNamespaces() === false ? "linux-namespaces" : "local-process";
  const provider = await IdentityProvider.open();
  const server = await startFullServer({
    ...options,
    backend,
    server: { ...options.server, dataDir },
    settings: { ...options.settings, access: { ...options.settings?.["access"], jwt: provider.settings } },
  });
  return {
    server,
    client({ tenant, scopes = SCOPES }) {
      const scp = scopes.map((scope) => `${scope}:sandbox`);
      return clientOf(server.url, `Bearer ${provider.token({ org_id: tenant, scp })}`);
    },
    async [Symbol.asyncDispose]() {
      await server.stop();
      await provider[Symbol.asyncDispose]();
      await rm(directory, { recursive: true, force: true });
    },
  };
}

function clientOf(url: string, authorization: string): Client {
  const ask = (method: string, path: string, body?: string): Promise<Answer> =>
    exchange(url, {
      method,
      path,
      headers: { authorization },
      ...(body !== undefined && { body }),
    });
  return {
    authorization,
    ask,
    async createSandbox(fields = {}) {
      const wanted = { templateID: "base", metadata: { of: "acme" }, ...fields };
      const made = await ask("POST", "/v2/sandboxes", JSON.stringify(wanted));
      assert.equal(made.status, 201, made.text);
      const answer = made.json() as Record<string, string>;
      const { sandboxID: id, envdAccessToken: token, trafficAccessToken: trafficToken } = answer;
      assert.ok(id && token);
      return { id, token, trafficToken };
    },
  };
}

/** Sends one request to a route; returns status, headers and body of the answer as one text. */
export async function answerOf(
  url: string,
  route: ServedRoute,
  who: Client,
  parts: { readonly path: string; readonly body: string | undefined },
): Promise<string> {
  if (route.kind === "upgrade") {
    const head = `GET ${parts.path} HTTP/1.1\r\nhost: localhost\r\nauthorization: ${who.authorization}\r\n`;
    const upgrade =
      "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
    // Accepted streams and upgrades are cut: only the beginning of the answer counts.
    return rawExchange(url, `${head}${upgrade}\r\n\x88\x80\0\0\0\0`, { hangUp: true });
  }
  const { status, headers, text } = await who.ask(route.method, parts.path, parts.body);
  const { "date": _date, "x-request-id": _id, ...steady } = headers;
  return JSON.stringify([status, steady, text]);
}
