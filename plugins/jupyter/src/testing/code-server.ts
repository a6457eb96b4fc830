import assert from "node:assert/strict";
import { setTimeout as delay } from "node:timers/promises";
import type { LiveSandbox, Logger } from "@coppice/core";
import { startTestServer, type TestServer } from "@coppice/core/testing";
import localProcess from "@coppice/plugin-local-process";
import { plugin } from "../plugin.js";

export interface Line {
  readonly type: string;
  readonly [field: string]: unknown;
}

export interface Execution {
  readonly status: number;
  readonly body: string;
  readonly lines: readonly Line[];
  /** Output of a stream, joined. */
  readonly text: (stream: "stdout" | "stderr") => string;
  readonly results: readonly Line[];
  readonly error: Line | undefined;
}

/** A server whose sandboxes run real kernels on this machine. */
export interface CodeServer extends AsyncDisposable {
  readonly server: TestServer;
  create(environment?: Readonly<Record<string, string>>, template?: string): Promise<CodeSandbox>;
  /** Value of a metric of this plugin, with its labels; NaN for none. */
  metric(name: string): Promise<number>;
}

export interface CodeSandbox {
  readonly live: LiveSandbox;
  fetch(path: string, init?: RequestInit): Promise<Response>;
  /** `POST /execute`, read to its end. */
  run(code: string, more?: object): Promise<Execution>;
  /** Starts code and goes away in the middle of it. */
  leave(code: string, afterMs: number): Promise<void>;
}

/** The interpreter with ipykernel for kernels of tests. */
export const PYTHON = process.env["COPPICE_PYTHON"] ?? "python3";

// Selects the other transport for the same tests.
const TRANSPORT = process.env["COPPICE_TRANSPORT"];

/** @param server overrides of the server's configuration. */
export async function startCodeServer(
  settings: object = {},
  server: Readonly<Record<string, unknown>> = {},
  log?: Logger,
): Promise<CodeServer> {
  const started = await startTestServer({
    server,
    ...(log !== undefined && { log }),
    plugins: [
      [localProcess, {}],
      [
        plugin,
        {
          python: PYTHON,
          node: process.execPath,
          ...(TRANSPORT !== undefined && { transport: TRANSPORT }),
          ...settings,
        },
      ],
    ],
  });
  return {
    server: started,
    async create(environment = {}, template = "base") {
      const live = await started.sandboxes.create({
        template,
        timeoutMs: 600_000,
        secure: false,
        environment,
      });
      const send = (path: string, init: RequestInit = {}): Promise<Response> =>
        fetch(`${started.url}${path}`, {
          signal: AbortSignal.timeout(60_000),
          ...init,
          headers: {
            "e2b-sandbox-id": live.record.id,
            "e2b-sandbox-port": "49999",
            "content-type": "application/json",
          },
        });
      return {
        live,
        fetch: send,
        run: async (code, more = {}) =>
          readExecution(await send("/execute", { method: "POST", body: JSON.stringify({ code, ...more }) })),
        async leave(code, afterMs) {
          const client = new AbortController();
          const { signal } = client;
          const response = await send("/execute", { method: "POST", body: JSON.stringify({ code }), signal });
          const reading = response.text().catch(() => undefined);
          await delay(afterMs);
          client.abort();
          await reading;
        },
      };
    },
    async metric(name) {
      const page = await (await fetch(`${started.urls["ops"]}/metrics`)).text();
      const line = page.split("\n").find((candidate) => candidate.startsWith(`coppice_jupyter_${name} `));
      return Number(line?.split(" ").at(-1) ?? Number.NaN);
    },
    [Symbol.asyncDispose]: () => started.stop(),
  };
}

/** Reads an execution's stream to its end and checks its invariants. */
async function readExecution(response: Response): Promise<Execution> {
  const body = await response.text();
  if (response.status !== 200) {
    return { status: response.status, body, lines: [], text: () => "", results: [], error: undefined };
  }
  assert.match(body, /^[\x20-\x7e\n]*$/, "only printable ASCII and newlines");
  assert.ok(
    body.endsWith('{"type": "end_of_execution"}\n'),
    `the stream ends with its last line: ${body.slice(-200)}`,
  );
  const lines = body
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as Line);
  return {
    status: 200,
    body,
    lines,
    text: (stream) =>
      lines
        .filter(({ type }) => type === stream)
        .map((line) => line["text"])
        .join(""),
    results: lines.filter(({ type }) => type === "result"),
    error: lines.find(({ type }) => type === "error"),
  };
}
