import { readFileSync } from "node:fs";
import {
  Agent as HttpAgent,
  type ClientRequest,
  type IncomingMessage,
  request as requestHttp,
  type ServerResponse,
} from "node:http";
import { Agent as HttpsAgent, request as requestHttps } from "node:https";
import { type Duplex, pipeline } from "node:stream";
import { setTimeout as pause } from "node:timers/promises";
import { destroySoon, headerLines, lastAnswer, passRequest, type SurfaceRequest } from "@coppice/core";
import type { FleetConfig } from "../fleet-config.js";
import { textOf } from "../store/etcd/etcd-client.js";
import type { FleetSecrets } from "../trust/fleet-secrets.js";
import { RequestProver, type ServerRun } from "../trust/request-proof.js";
import {
  ownHeaders,
  passedBackHeaders,
  passedOnHeaders,
  proofLine,
  type PeerFinder,
} from "./fleet-headers.js";
import { relayed, HEAD_LIMIT_BYTES, RelayConnections } from "./relay.js";
import { unavailable } from "../reasons.js";

export type Peer = ReturnType<PeerFinder["named"]>;

type PeerAnswer = Awaited<ReturnType<PeerFinder["gather"]>>["answers"][number];

export interface PeerConnections {
  readonly http: HttpAgent;
  readonly https: HttpsAgent;
  /** The authority of their certificates, where the system's do not do. */
  readonly ca?: string | undefined;
  /** Most bytes of an answer that this server reads whole. */
  readonly maxAnswer: number;
  /** How often a request that was passed on got each kind of connection. */
  readonly uses: { kept: number; opened: number };
}

export interface HttpPeerOptions {
  readonly node: string;
  /** Its record: the URL of its listener for other servers, and the name of the secret that both have. */
  readonly server: ServerRun & { readonly address: string; readonly secret: string };
  readonly secrets: FleetSecrets;
  readonly connections: PeerConnections;
  readonly connectMs: number;
  readonly onFailure: () => void;
}

const LISTENER_CLOSES_MS = 50;
/** Of the answer to a question of this server itself: what is parsed must not take long. */
const MOST_TOLD_BYTES = 64 * 1024;
/** Limit of the bytes sent before an upgrade is answered. WebSocket clients send none. */
const EARLY_BYTES = 64 * 1024;

export function connectionsBy({ ca, maxAnswer }: Pick<FleetConfig, "ca" | "maxAnswer">) {
  return peerConnections({ maxAnswer, ca: ca === undefined ? undefined : readFileSync(ca, "utf8") });
}

/** Connections to all peers. @param ca the authority of their certificates, where the system's do not do. */
export function peerConnections({
  ca,
  maxAnswer,
}: Pick<PeerConnections, "ca" | "maxAnswer">): PeerConnections & Disposable {
  const connections = {
    http: new HttpAgent({ keepAlive: true }),
    https: new HttpsAgent({ keepAlive: true, ...(ca !== undefined && { ca }) }),
    ca,
    maxAnswer,
    uses: { kept: 0, opened: 0 },
  };
  return {
    ...connections,
    [Symbol.dispose]() {
      connections.http.destroy();
      connections.https.destroy();
    },
  };
}

interface SentOptions {
  readonly method: string;
  readonly signal: AbortSignal;
  readonly text?: string;
  readonly request?: SurfaceRequest;
}

/** An answer other than 200 to a request of this server's own. */
export class PeerRefusal extends Error {
  override readonly name = "PeerRefusal";

  constructor(
    node: string,
    readonly status: number,
  ) {
    super(`'${node}' answered ${status}`);
  }
}

export class HttpPeer implements Peer {
  readonly #options: HttpPeerOptions;
  readonly #prover: RequestProver;
  readonly #open = new Set<ClientRequest | Duplex>();
  readonly #relays: RelayConnections;
  #isGone = false;

  constructor(options: HttpPeerOptions) {
    this.#options = options;
    const { server, secrets, connectMs, connections } = options;
    const { address, secret } = server;
    this.#prover = new RequestProver({ secrets, secret, server });
    this.#relays = new RelayConnections({ address, connectMs, ca: connections.ca });
  }

  async relay(
    request: SurfaceRequest,
    { message, response }: { readonly message: IncomingMessage; readonly response: ServerResponse },
  ): Promise<void> {
    // The client left while its server was looked up.
    if (response.destroyed) return;
    const {
      node,
      connections: { uses },
    } = this.#options;
    const headers = passedOnHeaders(message, request);
    const proof = () => proofLine(this.#prover, message, request);
    const refusal = (cause: unknown): unknown => this.#unreachable(cause);
    const loss = {
      message: `the connection to server '${node}' of the fleet was lost`,
      isLost: () => this.#isLost(),
    };
    await passRequest(relayed({ message, response, headers, proof, refusal, loss }), {
      take: () => {
        const connection = this.#relays.take();
        if (connection !== undefined) uses.kept += 1;
        return connection;
      },
      dial: async () => {
        const connection = await this.#relays.dial().catch((error: unknown) => {
          throw this.#unreachable(error);
        });
        uses.opened += 1;
        return { connection, option: "keep-alive" };
      },
    });
  }

  async relayUpgrade(
    request: SurfaceRequest,
    {
      message,
      socket,
      head,
    }: { readonly message: IncomingMessage; readonly socket: Duplex; readonly head: Buffer },
  ): Promise<void> {
    if (socket.destroyed) return;
    const { promise: answered, resolve, reject } = Promise.withResolvers<void>();
    const headers = ["connection", "upgrade", "upgrade", String(message.headers.upgrade)];
    const sent = this.#request(request, message, { headers, agent: false });
    // Read from the start: an unread socket does not reveal that its client has left.
    const early = [head];
    const keep = (bytes: Buffer): void => {
      early.push(bytes);
      if (early.reduce((sum, { length }) => sum + length, 0) > EARLY_BYTES) socket.destroy();
    };
    // One that has ended its side may still read a refusal.
    const leave = (): void => destroySoon(socket);
    const stopKeeping = (): unknown => socket.off("data", keep).off("end", leave);
    socket.on("data", keep).once("end", leave);
    socket.once("close", () => {
      sent.destroy();
      resolve();
    });
    sent.on("error", (error) => {
      // One that its client has given up did reach the server.
      if (!socket.destroyed) reject(this.#unreachable(error));
    });
    sent.once("response", (answer) => {
      stopKeeping();
      const { statusCode: status = 502, rawHeaders } = answer;
      const refused = lastAnswer(message, socket, { status, headers: passedBackHeaders(rawHeaders) });
      // Where the answer is cut, its client's connection is, too.
      pipeline(answer, refused, () => undefined);
      resolve();
    });
    sent.once("upgrade", (answer, upstream, first) => {
      stopKeeping();
      this.#track(upstream);
      upstream.on("error", () => socket.destroy());
      upstream.once("close", () => socket.destroy());
      socket.once("close", () => upstream.destroy());
      if (socket.destroyed) upstream.destroy();
      socket.write(headOf(answer, ["connection", "upgrade", "upgrade", String(answer.headers.upgrade)]));
      socket.write(first);
      upstream.write(Buffer.concat(early));
      upstream.pipe(socket).pipe(upstream);
      resolve();
    });
    sent.end();
    await answered;
  }

  /** Asks the server itself something. @throws Error when it does not answer 200 with JSON. */
  async ask(path: string, question: unknown, signal: AbortSignal): Promise<unknown> {
    const { body } = await this.#send(path, { method: "POST", signal, text: JSON.stringify(question) });
    return body;
  }

  /** Sends the GET request of a client. @throws as `ask` */
  get(request: SurfaceRequest, signal: AbortSignal): Promise<PeerAnswer> {
    const { pathname, search } = request.url;
    return this.#send(pathname + search, { method: "GET", signal, request });
  }

  async #send(path: string, { method, signal, text, request }: SentOptions): Promise<PeerAnswer> {
    const { server, node, connections } = this.#options;
    // Not by a base: a path of a client with two slashes would name another host.
    const url = new URL(new URL(server.address).origin + path);
    const headers = {
      ...ownHeaders(this.#prover, { method, path: url.pathname + url.search }, request),
      ...(text !== undefined && { "content-type": "application/json" }),
    };
    const isTls = url.protocol === "https:";
    const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
    const agent = connections[isTls ? "https" : "http"];
    const sent = (isTls ? requestHttps : requestHttp)(url, { method, headers, signal, agent }, resolve);
    this.#track(sent);
    sent.on("error", (error) => {
      // Not one that the client of the request has given up.
      if (error.name !== "AbortError") this.#options.onFailure();
      reject(error);
    });
    sent.end(text);
    const answer = await promise;
    const body = await textOf(answer, request === undefined ? MOST_TOLD_BYTES : connections.maxAnswer);
    if (answer.statusCode !== 200) throw new PeerRefusal(node, answer.statusCode ?? 0);
    return { headers: answer.headers, body: JSON.parse(body) };
  }

  /** Ends what is under way: a server that is gone may never say so. */
  end(): void {
    this.#isGone = true;
    for (const exchange of this.#open) exchange.destroy(new Error("the server is gone"));
    this.#relays.end();
  }

  /** Asked when a connection was cut. */
  async #isLost(): Promise<boolean> {
    // Of a process that ends connections may close before the listener does.
    await pause(LISTENER_CLOSES_MS);
    try {
      if (!this.#isGone) (await this.#relays.dial()).stream.destroy();
    } catch {
      return true;
    }
    return this.#isGone;
  }

  #track(exchange: ClientRequest | Duplex): void {
    this.#open.add(exchange);
    exchange.once("close", () => this.#open.delete(exchange));
  }

  #request(
    request: SurfaceRequest,
    message: IncomingMessage,
    { headers = [], agent }: { readonly headers?: readonly string[]; readonly agent?: false },
  ): ClientRequest {
    const { server, connections, connectMs } = this.#options;
    const { protocol, hostname, port } = new URL(server.address);
    const isTls = protocol === "https:";
    const sent = (isTls ? requestHttps : requestHttp)({
      hostname,
      port,
      method: message.method,
      path: message.url,
      headers: [
        ...passedOnHeaders(message, request),
        ...proofLine(this.#prover, message, request),
        ...headers,
      ],
      // The client's Host is one of its headers.
      setHost: false,
      maxHeaderSize: HEAD_LIMIT_BYTES,
      agent: agent ?? connections[isTls ? "https" : "http"],
    });
    this.#track(sent);
    sent.once("socket", (socket) => {
      if (!socket.connecting) return;
      const timer = setTimeout(() => socket.destroy(new Error("the connection timed out")), connectMs);
      const stop = (): void => clearTimeout(timer);
      socket.once(isTls ? "secureConnect" : "connect", stop).once("close", stop);
    });
    return sent;
  }

  #unreachable(cause: unknown): Error {
    this.#options.onFailure();
    return unavailable(`server '${this.#options.node}' of the fleet cannot be reached`, cause);
  }
}

function headOf({ statusCode, statusMessage, rawHeaders }: IncomingMessage, more: readonly string[]): string {
  return `HTTP/1.1 ${statusCode} ${statusMessage}\r\n${headerLines([...passedBackHeaders(rawHeaders), ...more])}\r\n`;
}
