import { Agent, type IncomingHttpHeaders, request } from "node:http";

export interface ExchangeOptions {
  readonly method?: string;
  /** Path and query, sent as they are. */
  readonly path?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string | Uint8Array;
  readonly agent?: Agent;
}

/** A whole HTTP answer. */
export interface Answer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly body: Buffer;
  /** The body as UTF-8, decoded on access: decoding a large one takes longer than the exchange. */
  readonly text: string;
  /** The body as JSON. @throws SyntaxError when it is none. */
  json(): unknown;
}

/** One HTTP exchange without the restrictions of `fetch`: any Host, any header, any path. */
export async function exchange(url: string, options: ExchangeOptions = {}): Promise<Answer> {
  const { hostname, port } = new URL(url);
  const { promise, resolve, reject } = Promise.withResolvers<Answer>();
  const { method = "GET", body: sent } = options;
  // Node itself adds none to a DELETE.
  const length =
    method === "DELETE" && sent !== undefined ? { "content-length": Buffer.byteLength(sent) } : undefined;
  const outgoing = request(
    {
      hostname,
      port,
      method,
      path: options.path ?? "/",
      headers: { ...length, ...options.headers },
      agent: options.agent ?? false,
    },
    (incoming) => {
      const chunks: Buffer[] = [];
      incoming.on("data", (chunk: Buffer) => chunks.push(chunk));
      incoming.on("error", reject);
      incoming.on("end", () => {
        const body = Buffer.concat(chunks);
        const { statusCode: status = 0, headers } = incoming;
        resolve({
          status,
          headers,
          body,
          get text() {
            return body.toString("utf8");
          },
          json: () => JSON.parse(body.toString("utf8")) as unknown,
        });
      });
    },
  );
  outgoing.on("error", reject);
  outgoing.end(sent);
  return promise;
}
