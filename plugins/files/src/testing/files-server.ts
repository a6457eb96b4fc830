import { once } from "node:events";
import { request as httpRequest } from "node:http";
import { type LiveSandbox, type Plugin, Sandboxes } from "@coppice/core";
import { type TestServer, startTestServer } from "@coppice/core/testing";
import localProcess from "@coppice/plugin-local-process";
import files from "../index.js";

/** A server with one sandbox, accessed as clients do. */
export interface FilesServer extends AsyncDisposable {
  readonly server: TestServer;
  readonly sandbox: LiveSandbox;
  /** A request to the sandbox; not compressed unless the headers say so. */
  fetch(path: string, init?: RequestInit): Promise<Response>;
  put(
    path: string,
    body: NonNullable<RequestInit["body"]>,
    headers?: Record<string, string>,
  ): Promise<Response>;
  /** A unary RPC of filesystem.Filesystem as JSON: status and parsed body. */
  call(method: string, body: unknown, headers?: Record<string, string>): Promise<RpcAnswer>;
  /** The messages of a WatchDir stream, the end frame included; ends with the stream. */
  watch(
    body: unknown,
    options?: { readonly headers?: Record<string, string>; readonly signal?: AbortSignal },
  ): AsyncGenerator<StreamFrame>;
  /** Path on this host of a directory of the sandbox; changes there count as a process's. */
  hostPath(path: string): Promise<string>;
  /** Starts an upload by hand; `send` resolves when the bytes are on their way. */
  upload(path: string, headers: Record<string, string>): Promise<ManualUpload>;
}

export interface RpcAnswer {
  readonly status: number;
  // Tests read it without types.
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  readonly body: any;
}

export interface StreamFrame {
  readonly isEnd: boolean;
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  readonly message: any;
}

export interface ManualUpload {
  send(chunk: Uint8Array): Promise<void>;
  /** Cuts the connection. */
  abandon(): void;
}

export interface FilesServerOptions {
  readonly settings?: unknown;
  /** local-process when absent. */
  readonly backend?: Plugin;
  /** Kept afterwards; a new one when absent. */
  readonly dataDir?: string;
  readonly http?: object;
}

export async function startFilesServer(options: FilesServerOptions = {}): Promise<FilesServer> {
  const backend = options.backend ?? localProcess;
  const server = await startTestServer({
    plugins: [
      [files, options.settings ?? {}],
      [backend, {}],
    ],
    server: { sandboxes: { defaultBackend: backend.name }, ...(options.http && { http: options.http }) },
    ...(options.dataDir !== undefined && { dataDir: options.dataDir }),
  });
  try {
    const sandbox = await server
      .resolve(Sandboxes)
      .create({ template: "base", timeoutMs: undefined, secure: false });
    return filesServer(server, sandbox);
  } catch (error) {
    await server.stop();
    throw error;
  }
}

function filesServer(server: TestServer, sandbox: LiveSandbox): FilesServer {
  const address = { "e2b-sandbox-id": sandbox.record.id, "e2b-sandbox-port": "49983" };
  const fetchFrom: FilesServer["fetch"] = (path, init = {}) =>
    fetch(new URL(path, server.url), {
      ...init,
      headers: { ...address, "accept-encoding": "identity", ...(init.headers as Record<string, string>) },
    });
  return {
    server,
    sandbox,
    fetch: fetchFrom,
    put: (path, body, headers) =>
      fetchFrom(`/files?path=${encodeURIComponent(path)}`, {
        method: "POST",
        body,
        headers: { "content-type": "application/octet-stream", ...headers },
        duplex: "half",
      }),
    async call(method, body, headers) {
      const response = await fetchFrom(`/filesystem.Filesystem/${method}`, {
        method: "POST",
        headers: { "content-type": "application/json", "connect-protocol-version": "1", ...headers },
        body: JSON.stringify(body),
      });
      return { status: response.status, body: await response.json() };
    },
    async *watch(body, { headers, signal } = {}) {
      const message = Buffer.from(JSON.stringify(body));
      const frame = Buffer.alloc(5);
      frame.writeUInt32BE(message.length, 1);
      const response = await fetchFrom("/filesystem.Filesystem/WatchDir", {
        method: "POST",
        headers: { "content-type": "application/connect+json", "connect-protocol-version": "1", ...headers },
        body: Buffer.concat([frame, message]),
        ...(signal && { signal }),
      });
      let bytes = Buffer.alloc(0);
      for await (const chunk of response.body ?? []) {
        bytes = Buffer.concat([bytes, chunk]);
        while (bytes.length >= 5 && bytes.length >= 5 + bytes.readUInt32BE(1)) {
          const end = 5 + bytes.readUInt32BE(1);
          yield { isEnd: bytes[0] === 2, message: JSON.parse(bytes.subarray(5, end).toString()) };
          bytes = bytes.subarray(end);
        }
      }
    },
    async hostPath(path) {
      const { files: own } = sandbox.runtime;
      if (own.hostPath === undefined) throw new Error("this backend hides its trees");
      return own.hostPath(path);
    },
    async upload(path, headers) {
      const upload = httpRequest(new URL(path, server.url), {
        method: "POST",
        headers: { ...address, ...headers },
      });
      upload.on("error", () => undefined);
      upload.flushHeaders();
      return {
        async send(chunk) {
          if (!upload.write(chunk)) await once(upload, "drain");
        },
        abandon: () => void upload.destroy(),
      };
    },
    [Symbol.asyncDispose]: () => server.stop(),
  };
}
