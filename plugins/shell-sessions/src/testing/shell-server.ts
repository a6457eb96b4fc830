import assert from "node:assert/strict";
import type { LiveSandbox, Plugin } from "@coppice/core";
import { startTestServer, type TestServer } from "@coppice/core/testing";
import commands from "@coppice/plugin-commands";
import localProcess from "@coppice/plugin-local-process";
import { plugin as shellSessions } from "../plugin.js";

export interface ShellServer extends AsyncDisposable {
  readonly server: TestServer;
  /** A sandbox without a token. */
  readonly sandbox: LiveSandbox;
  /** Base URL of its interface. */
  readonly url: string;
  /** Sends a request with a JSON body to a path below the base URL. */
  ask(method: string, path: string, body?: unknown): Promise<Response>;
  /** As `ask`: fails unless the answer has that status. @returns its JSON. */
  json(method: string, path: string, body?: unknown, status?: number): Promise<Record<string, unknown>>;
  /** As `ask`, for a stream. @returns its events. */
  events(method: string, path: string, body?: unknown): Promise<readonly Record<string, unknown>[]>;
}

/** A server with the plugin and one sandbox. @param more plugins. @param overrides of the server's configuration. */
export async function startShellServer(
  settings: Readonly<Record<string, unknown>> = {},
  more: readonly (readonly [Plugin, object])[] = [],
  overrides: Readonly<Record<string, unknown>> = {},
): Promise<ShellServer> {
  const server = await startTestServer({
    server: overrides,
    plugins: [[commands, {}], [localProcess, {}], [shellSessions, settings], ...more],
  });
  const sandbox = await server.sandboxes.create({ template: "base", timeoutMs: 600_000, secure: false });
  const url = `${server.url}/sandboxes/${sandbox.record.id}/shell`;
  const ask: ShellServer["ask"] = (method, path, body) =>
    fetch(url + path, {
      method,
      headers: { "content-type": "application/json" },
      ...(body !== undefined && { body: typeof body === "string" ? body : JSON.stringify(body) }),
    });
  return {
    server,
    sandbox,
    url,
    ask,
    async json(method, path, body, status = 200) {
      const answer = await ask(method, path, body);
      const text = await answer.text();
      assert.equal(answer.status, status, `${method} ${path}: ${text}`);
      return JSON.parse(text) as Record<string, unknown>;
    },
    async events(method, path, body) {
      const answer = await ask(method, path, body);
      const text = await answer.text();
      assert.match(answer.headers.get("content-type") ?? "", /^text\/event-stream/, text);
      return text
        .split("\n\n")
        .filter((frame) => frame.startsWith("data: "))
        .map((frame) => JSON.parse(frame.slice("data: ".length)) as Record<string, unknown>);
    },
    [Symbol.asyncDispose]: () => server.stop(),
  };
}
