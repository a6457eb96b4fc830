import { Agent, request as httpsRequest } from "node:https";
import { request as httpRequest } from "node:http";

export class RubyClientError extends Error {
  override readonly name = "RubyClientError";
  readonly kind: "auth" | "not found" | "protocol" | "server" | "other";

  constructor(kind: RubyClientError["kind"], message: string) {
    super(message);
    this.kind = kind;
  }
}

export interface RubyClientOptions {
  /** The control plane. */
  readonly apiUrl: string;
  readonly apiKey: string;
  /** Address to which this client resolves every name. */
  readonly address: { readonly host: string; readonly port: number };
  /** PEM of the authority that issued the server's certificate. */
  readonly authority: string;
}

/** Result of a command for this client, which reads the status text and no `exitCode`. */
export interface RubyResult {
  readonly stdout: string;
  readonly stderr: string;
  readonly status: number;
}

interface Reply {
  readonly status: number;
  readonly body: Buffer;
}

const RETRIED_STATUS = new Set([502, 503, 504]);
const RETRIED_METHODS = new Set(["GET", "HEAD", "DELETE"]);
const TRIES = 4;

/**
 * A re-implementation of the gem `agent_sandbox` 0.1.0 from outside: its requests, the fields of answers that it
 * reads, and its failures. It differs from the SDKs in the fields that it ignores, such as an end event's
 * `exitCode`.
 */
export class RubyClient {
  readonly #options: RubyClientOptions;
  readonly #agent: Agent;
  #sandbox: { readonly id: string; readonly token: string; readonly domain: string } | undefined;

  constructor(options: RubyClientOptions) {
    this.#options = options;
    this.#agent = new Agent({ ca: options.authority, keepAlive: false });
  }

  /** True until the server has confirmed a kill, or has said that there is no such sandbox. */
  get hasHandle(): boolean {
    return this.#sandbox !== undefined;
  }

  get sandboxId(): string {
    return this.#handle.id;
  }

  async create(): Promise<void> {
    const reply = await this.#send("POST", `${this.#options.apiUrl}/sandboxes`, {
      headers: { "x-api-key": this.#options.apiKey, "content-type": "application/json" },
      body: JSON.stringify({ templateID: "base", timeout: 3600, metadata: {}, secure: true }),
    });
    const created = JSON.parse(expectSuccess(reply).toString()) as {
      sandboxID?: string;
      envdAccessToken?: string;
      domain?: string | null;
    };
    const { sandboxID: id, envdAccessToken: token, domain } = created;
    if (!id || !token) throw new RubyClientError("protocol", "the answer names no sandbox, or no token");
    this.#sandbox = { id, token, domain: domain ?? "e2b.app" };
  }

  async kill(): Promise<void> {
    const { id } = this.#handle;
    const reply = await this.#send("DELETE", `${this.#options.apiUrl}/sandboxes/${id}`, {
      headers: { "x-api-key": this.#options.apiKey },
    });
    if (!(reply.status >= 200 && reply.status < 300) && !saysSandboxIsGone(reply)) expectSuccess(reply);
    this.#sandbox = undefined;
  }

  async write(path: string, content: Uint8Array): Promise<void> {
    expectSuccess(
      await this.#send("POST", this.#filesUrl(path), {
        headers: { "x-access-token": this.#handle.token, "content-type": "application/octet-stream" },
        body: content,
      }),
    );
  }

  async read(path: string): Promise<Buffer> {
    const headers = { "x-access-token": this.#handle.token };
    return expectSuccess(await this.#send("GET", this.#filesUrl(path), { headers }));
  }

  portUrl(port: number): string {
    const { id, domain } = this.#handle;
    return `https://${port}-${id}.${domain}`;
  }

  async exec(command: string): Promise<RubyResult> {
    const message = Buffer.from(JSON.stringify({ process: { cmd: "sh", args: ["-c", command] } }));
    const head = Buffer.alloc(5);
    head.writeUInt32BE(message.length, 1);
    const reply = await this.#send("POST", `${this.portUrl(49983)}/process.Process/Start`, {
      headers: { "x-access-token": this.#handle.token, "content-type": "application/connect+json" },
      body: Buffer.concat([head, message]),
    });
    return resultOf(expectSuccess(reply));
  }

  close(): void {
    this.#agent.destroy();
  }

  #filesUrl(path: string): string {
    // The parameter is `user`, where the SDKs send `username`.
    return `${this.portUrl(49983)}/files?${new URLSearchParams({ user: "user", path }).toString()}`;
  }

  get #handle() {
    if (this.#sandbox === undefined) throw new RubyClientError("other", "there is no sandbox");
    return this.#sandbox;
  }

  async #send(
    method: string,
    url: string,
    { headers, body }: { headers: Record<string, string>; body?: string | Uint8Array },
  ): Promise<Reply> {
    for (let left = RETRIED_METHODS.has(method) ? TRIES : 1; ; left -= 1) {
      const reply = await this.#sendOnce(method, new URL(url), headers, body);
      if (left <= 1 || !RETRIED_STATUS.has(reply.status)) return reply;
    }
  }

  async #sendOnce(
    method: string,
    url: URL,
    headers: Record<string, string>,
    body: string | Uint8Array | undefined,
  ): Promise<Reply> {
    const { promise, resolve, reject } = Promise.withResolvers<Reply>();
    const { host, port } = this.#options.address;
    const isTls = url.protocol === "https:";
    const outgoing = (isTls ? httpsRequest : httpRequest)(
      {
        method,
        host,
        port,
        path: `${url.pathname}${url.search}`,
        headers: { ...headers, host: url.host },
        ...(isTls && { agent: this.#agent, servername: url.hostname }),
      },
      (incoming) => {
        const chunks: Buffer[] = [];
        incoming.on("data", (chunk: Buffer) => chunks.push(chunk));
        incoming.on("error", reject);
        incoming.on("end", () => resolve({ status: incoming.statusCode ?? 0, body: Buffer.concat(chunks) }));
      },
    );
    outgoing.on("error", reject);
    outgoing.end(body);
    return promise;
  }
}

function expectSuccess({ status, body }: Reply): Buffer {
  if (status >= 200 && status < 300) return body;
  const kind =
    status === 401 || status === 403
      ? "auth"
      : status === 404
        ? "not found"
        : status >= 500
          ? "server"
          : "other";
  throw new RubyClientError(kind, `${status}: ${body.toString()}`);
}

/** Only a JSON object that names a missing sandbox counts; any other 404 may be a proxy's. */
function saysSandboxIsGone({ status, body }: Reply): boolean {
  if (status !== 404) return false;
  let parsed: unknown;
  try {
    parsed = JSON.parse(body.toString());
  } catch {
    return false;
  }
  if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed)) return false;
  const fields = parsed as Record<string, unknown>;
  const words = (name: string): string => {
    const value = fields[name];
    return typeof value === "string" ? value.toLowerCase() : "";
  };
  const isCode = (text: string): boolean =>
    text.includes("sandbox") && /not_found|not found|missing/.test(text);
  const isPhrase = (text: string): boolean =>
    /sandbox not found|sandbox does not exist|sandbox was not found|no such sandbox/.test(text);
  return (
    ["code", "type"].some((name) => isCode(words(name))) ||
    ["message", "error"].some((name) => isPhrase(words(name)))
  );
}

/**
 * Reads a whole Start stream.
 * @throws RubyClientError for a frame that is cut off or no JSON, and for a stream without a trailer, an end
 * or its status.
 */
export function resultOf(stream: Buffer): RubyResult {
  const output = { stdout: "", stderr: "" };
  let status: string | undefined;
  let hasTrailer = false;
  for (let offset = 0; offset < stream.length;) {
    const end = offset + 5 + (offset + 5 <= stream.length ? stream.readUInt32BE(offset + 1) : Infinity);
    if (end > stream.length) throw new RubyClientError("protocol", "a frame is cut off");
    const isTrailer = (stream.readUInt8(offset) & 0x02) !== 0;
    const message = parseFrame(stream.toString("utf8", offset + 5, end));
    offset = end;
    if (isTrailer) {
      hasTrailer = true;
      if (message.error !== undefined) throw new RubyClientError("server", JSON.stringify(message.error));
      continue;
    }
    const { data, end: ended } = message.event ?? {};
    for (const name of ["stdout", "stderr"] as const) {
      output[name] += Buffer.from(data?.[name] ?? "", "base64").toString();
    }
    if (ended !== undefined) {
      if (ended.status === undefined) throw new RubyClientError("protocol", "an end without a status");
      status = ended.status;
    }
  }
  if (!hasTrailer || status === undefined) throw new RubyClientError("protocol", "the stream has no end");
  return { ...output, status: statusNumber(status) };
}

/** Exit code of a status text: any text but `exit status N` is a failure, an empty one is a success. */
function statusNumber(status: string): number {
  const [, code] = /^exit status (\d+)$/.exec(status) ?? [];
  return code === undefined ? 1 : Number(code);
}

interface StartFrame {
  readonly event?: {
    readonly data?: { readonly stdout?: string; readonly stderr?: string };
    readonly end?: { readonly status?: string };
  };
  readonly error?: unknown;
}

function parseFrame(text: string): StartFrame {
  try {
    return JSON.parse(text) as StartFrame;
  } catch {
    throw new RubyClientError("protocol", "a frame is no JSON");
  }
}
