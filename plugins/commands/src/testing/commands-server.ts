import { ENVD_PORT, type LiveSandbox } from "@coppice/core";
import { type TestServer, startTestServer } from "@coppice/core/testing";
import localProcess from "@coppice/plugin-local-process";
import commands from "../index.js";

/** A server with one sandbox of real processes, accessed as clients do. */
export interface CommandsServer extends AsyncDisposable {
  readonly server: TestServer;
  readonly sandbox: LiveSandbox;
  fetch(path: string, init?: RequestInit): Promise<Response>;
  /** A unary RPC of process.Process as JSON. */
  call(method: string, body: unknown): Promise<{ readonly status: number; readonly body: unknown }>;
  /** The frames of a streaming RPC of process.Process as JSON, as they come. */
  stream(method: string, body: unknown, init?: StreamInit): AsyncGenerator<Frame>;
  /** The value of a metric of the commands plugin, `name` without `coppice_commands_`. */
  metric(name: string): Promise<number>;
}

export interface StreamInit {
  readonly headers?: Record<string, string>;
  readonly signal?: AbortSignal;
}

export interface Frame {
  readonly flags: number;
  // Tests read it without types.
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  readonly message: any;
}

interface ServerSettings {
  /** Kept after the server's end when given, for a second server. */
  readonly dataDir?: string;
  readonly http?: unknown;
}

export async function startCommandsServer(
  settings: unknown = {},
  { dataDir, http = {} }: ServerSettings = {},
): Promise<CommandsServer> {
  const server = await startTestServer({
    ...(dataDir !== undefined && { dataDir }),
    server: { http },
    plugins: [
      [commands, settings],
      [localProcess, {}],
    ],
  });
  try {
    const sandbox = await server.sandboxes.create({ template: "base", timeoutMs: 120_000, secure: false });
    const request: CommandsServer["fetch"] = (path, init = {}) => {
      const headers = new Headers(init.headers);
      headers.set("E2b-Sandbox-Id", sandbox.record.id);
      headers.set("E2b-Sandbox-Port", String(ENVD_PORT));
      return fetch(server.url + path, { ...init, headers });
    };
    return {
      server,
      sandbox,
      fetch: request,
      async call(method, body) {
        const response = await request(`/process.Process/${method}`, {
          method: "POST",
          headers: { "content-type": "application/json" },
          body: JSON.stringify(body),
        });
        return { status: response.status, body: await response.json() };
      },
      async *stream(method, body, { headers, ...init } = {}) {
        const response = await request(`/process.Process/${method}`, {
          method: "POST",
          headers: { "content-type": "application/connect+json", ...headers },
          body: envelope(body),
          ...init,
        });
        if (response.status !== 200 || response.body === null) throw new Error(`HTTP ${response.status}`);
        yield* frames(response.body);
      },
      async metric(name) {
        const text = await (await fetch(`${server.urls["ops"]}/metrics`)).text();
        const line = text.split("\n").find((each) => each.startsWith(`coppice_commands_${name} `));
        return Number(line?.split(" ").at(-1));
      },
      [Symbol.asyncDispose]: () => server.stop(),
    };
  } catch (error) {
    await server.stop();
    throw error;
  }
}

/** One message of a Connect stream: flags, length, JSON. */
export function envelope(message: unknown): Uint8Array<ArrayBuffer> {
  const json = Buffer.from(JSON.stringify(message));
  const bytes = new Uint8Array(5 + json.length);
  new DataView(bytes.buffer).setUint32(1, json.length);
  bytes.set(json, 5);
  return bytes;
}

/** The messages of a Connect stream. @throws Error when it ends inside of one. */
export async function* frames(body: AsyncIterable<Uint8Array>): AsyncGenerator<Frame> {
  let rest = Buffer.alloc(0);
  for await (const chunk of body) {
    rest = Buffer.concat([rest, chunk]);
    while (rest.length >= 5 && rest.length >= 5 + rest.readUInt32BE(1)) {
      const end = 5 + rest.readUInt32BE(1);
      yield { flags: rest.readUInt8(0), message: JSON.parse(rest.subarray(5, end).toString()) };
      rest = rest.subarray(end);
    }
  }
  if (rest.length > 0) throw new Error(`the stream ended inside of a frame: ${rest.toString()}`);
}
