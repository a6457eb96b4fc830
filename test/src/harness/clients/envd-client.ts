import { request as httpRequest, type IncomingMessage } from "node:http";
import { once } from "node:events";
import { type Answer, exchange } from "./exchange.js";
import { type Frame, packFrame } from "./connect-frames.js";

export interface EnvdClientOptions {
  readonly url: string;
  readonly sandboxId: string;
  /** Presented as `X-Access-Token` when given. */
  readonly token?: string | undefined;
  /** envd's when absent. */
  readonly port?: number;
}

export interface EnvdRequest {
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string | Uint8Array;
}

export interface EnvdStreamOptions {
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
}

/** Sends requests to one sandbox's envd that no SDK sends: any header, any body. */
export interface EnvdClient {
  send(method: string, path: string, request?: EnvdRequest): Promise<Answer>;
  /** A unary RPC as JSON, `process.Process/List`: its status and parsed body. */
  call(rpc: string, message: unknown, headers?: Readonly<Record<string, string>>): Promise<RpcAnswer>;
  /** The frames of a streaming RPC as JSON, as they come. @throws Error when the connection breaks. */
  stream(rpc: string, message: unknown, options?: EnvdStreamOptions): AsyncGenerator<Frame>;
}

export interface RpcAnswer {
  readonly status: number;
  // Tests look into it as they please.
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  readonly body: any;
}

/** `Authorization` as the SDKs name a user. */
export function basicUserHeader(name: string): { readonly authorization: string } {
  return { authorization: `Basic ${Buffer.from(`${name}:`).toString("base64")}` };
}

export function envdClient({ url, sandboxId, token, port = 49983 }: EnvdClientOptions): EnvdClient {
  const address = {
    "e2b-sandbox-id": sandboxId,
    "e2b-sandbox-port": String(port),
    ...(token !== undefined && { "x-access-token": token }),
  };
  const send: EnvdClient["send"] = (method, path, { headers, body } = {}) =>
    exchange(url, {
      method,
      path,
      headers: { ...address, ...headers },
      ...(body !== undefined && { body }),
    });
  return {
    send,
    async call(rpc, message, headers) {
      const answer = await send("POST", `/${rpc}`, {
        headers: { "content-type": "application/json", ...headers },
        body: JSON.stringify(message),
      });
      return { status: answer.status, body: answer.json() };
    },
    async *stream(rpc, message, { headers, signal } = {}) {
      const outgoing = httpRequest(new URL(`/${rpc}`, url), {
        method: "POST",
        agent: false,
        headers: {
          ...address,
          "content-type": "application/connect+json",
          "connect-protocol-version": "1",
          ...headers,
        },
        ...(signal && { signal }),
      });
      outgoing.end(packFrame(JSON.stringify(message)));
      const [incoming] = (await once(outgoing, "response")) as [IncomingMessage];
      if (incoming.statusCode !== 200) {
        const body = Buffer.concat(await incoming.toArray()).toString();
        throw new Error(`${rpc}: HTTP ${incoming.statusCode}: ${body}`);
      }
      let received = Buffer.alloc(0);
      for await (const chunk of incoming as AsyncIterable<Buffer>) {
        received = Buffer.concat([received, chunk]);
        while (received.length >= 5 && received.length >= 5 + received.readUInt32BE(1)) {
          const end = 5 + received.readUInt32BE(1);
          const message = JSON.parse(received.toString("utf8", 5, end)) as unknown;
          yield { flags: received.readUInt8(0), message };
          received = received.subarray(end);
        }
      }
      if (received.length > 0) throw new Error(`${rpc}: the stream breaks off inside a frame`);
    },
  };
}
