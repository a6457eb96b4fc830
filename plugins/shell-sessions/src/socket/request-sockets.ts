import type { IncomingMessage } from "node:http";
import {
  type Clock,
  holdBytes,
  HttpError,
  type LiveSandbox,
  type Logger,
  parseJson,
  releaseBytes,
  Semaphore,
  type SurfaceRequest,
  takeMessages,
  toHttpError,
  type WebSocket,
  type WebSocketRoute,
} from "@coppice/core";
import { bytesJson } from "@coppice/plugin-commands";
import { z } from "zod";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import { ShellError } from "../shell/shell-error.js";
import type { Dispatch, ShellAnswer, ShellRoute } from "../wire/route.js";
import { eventTexts } from "../wire/http-transport.js";
import type { ShellAccess } from "../wire/shell-access.js";
import { errorAnswer } from "../wire/shell-errors.js";

interface RequestSocketsOptions {
  readonly routes: readonly ShellRoute[];
  readonly dispatch: Dispatch;
  readonly access: ShellAccess;
  readonly clock: Clock;
  readonly config: ShellSessionsConfig;
}

/** WebSockets that carry requests to all routes. */
export function requestSockets({ routes, ...options }: RequestSocketsOptions): WebSocketRoute {
  const { config } = options;
  const find = routeMatcher(routes);
  return {
    maxMessageBytes: config.maxBody,
    pingIntervalMs: config.heartbeat,
    room: config,
    open:
      ({ request: { log }, message, sandbox }) =>
      (socket) =>
        void new SocketClient(socket, { message, sandbox, find, log, ...options }),
  };
}

interface Matched {
  readonly route: ShellRoute;
  readonly params: Readonly<Record<string, string>>;
}

/** Finds the route of a request that comes without a router. @returns undefined where there is none. */
function routeMatcher(
  routes: readonly ShellRoute[],
): (method: string, pathname: string) => Matched | undefined {
  const patterns = routes.map((route) => ({
    route,
    pattern: new RegExp(`^${route.path.replace(/:(\w+)/g, "(?<$1>[^/]+)")}$`),
  }));
  return (method, pathname) => {
    for (const { route, pattern } of patterns) {
      const found = route.method === method ? pattern.exec(pathname) : null;
      if (found === null) continue;
      try {
        const groups = Object.entries(found.groups ?? {});
        return {
          route,
          params: Object.fromEntries(groups.map(([name, text]) => [name, decodeURIComponent(text)])),
        };
      } catch {
        return undefined;
      }
    }
    return undefined;
  };
}

export interface SocketClientOptions {
  /** The request that the WebSocket was opened by. */
  readonly message: IncomingMessage;
  readonly sandbox: LiveSandbox;
  readonly find: ReturnType<typeof routeMatcher>;
  readonly dispatch: Dispatch;
  readonly access: ShellAccess;
  readonly clock: Clock;
  readonly config: ShellSessionsConfig;
  readonly log: Logger;
}

/** Answers the requests of one WebSocket, several at a time. */
export class SocketClient {
  readonly #options: SocketClientOptions;
  readonly #writer: SocketWriter;
  /** Refusals that the client has not taken. */
  #refusals = 0;
  /** Requests that are being answered. */
  readonly #running = new Map<string, AbortController>();

  constructor(socket: WebSocket, options: SocketClientOptions) {
    this.#options = options;
    this.#writer = new SocketWriter(socket);
    takeMessages(socket, options.sandbox, (data, isBinary) => this.#take(data, isBinary));
    socket.once("close", () => {
      for (const running of this.#running.values()) running.abort();
    });
  }

  async #take(data: Buffer, isBinary: boolean): Promise<void> {
    let message: SocketMessage;
    try {
      message = messageOfFrame(data, isBinary);
    } catch {
      const text = "The message is no request and no cancellation";
      return await this.#refuse(undefined, new ShellError("VALIDATION_FAILED", text));
    }
    if (message.type === "cancel") {
      this.#running.get(message.id)?.abort();
      return;
    }
    const { id } = message;
    const { maxSocketRequests } = this.#options.config;
    if (this.#running.has(id)) {
      await this.#refuse(id, new ShellError("VALIDATION_FAILED", "A request with this id is being answered"));
    } else if (this.#running.size >= maxSocketRequests) {
      await this.#refuse(
        id,
        new ShellError("RESOURCE_BUSY", `The WebSocket has ${maxSocketRequests} requests already`),
      );
    } else {
      const { message: opening, log } = this.#options;
      try {
        holdBytes(opening, data.length);
      } catch (error) {
        return await this.#refuse(id, new ShellError("RESOURCE_BUSY", toHttpError(error, log).message));
      }
      const running = new AbortController();
      this.#running.set(id, running);
      void this.#answer(message, running.signal).finally(() => {
        this.#running.delete(id);
        releaseBytes(opening, data.length);
      });
    }
  }

  /** Refusals have their place in the queue of messages. A client that takes none is not read, or they would pile up. */
  async #refuse(id: string | undefined, error: ShellError): Promise<void> {
    const { status, body } = errorAnswer(error, this.#options.log);
    const { code, message, context } = body;
    const sent = this.#writer.send({
      type: "error",
      ...(id !== undefined && { id }),
      code,
      message,
      status,
      context,
    });
    this.#refusals += 1;
    const taken = sent.then(() => {
      this.#refusals -= 1;
    });
    if (this.#refusals >= this.#options.config.maxSocketRequests) await taken;
  }

  /** Never rejects. */
  async #answer(request: SocketRequest, signal: AbortSignal): Promise<void> {
    const { clock, config, log } = this.#options;
    const { id } = request;
    try {
      const answer = await this.#dispatch(request, signal);
      if (!("events" in answer)) return await this.#respond(id, answer);
      const options = { clock, heartbeatMs: config.heartbeat, log, signal };
      for await (const data of eventTexts(answer.events, options)) {
        if (signal.aborted) return;
        await this.#writer.send({ type: "stream", id, data });
      }
      if (!signal.aborted) await this.#writer.send({ type: "response", id, status: 200, done: true });
    } catch (error) {
      const { status, body } = errorAnswer(error, log);
      await this.#writer.send({ type: "response", id, status, body, done: true });
    }
  }

  async #respond(id: string, answer: Exclude<ShellAnswer, { readonly events: unknown }>): Promise<void> {
    const [status, body] = "text" in answer ? [200, answer.text] : [answer.status ?? 200, answer.json];
    const head = { type: "response", id, status, done: true };
    if ("text" in answer || answer.long === undefined) return await this.#writer.send({ ...head, body });
    const { long, held, isBase64 = false, json: fields } = answer;
    await using _ = held;
    const inner = bytesJson({ bytes: long, isText: !isBase64, fields });
    await this.#writer.sendParts(enclosed(`${JSON.stringify(head).slice(0, -1)},"body":`, inner, "}"));
  }

  async #dispatch({ method, path, body, headers }: SocketRequest, signal: AbortSignal): Promise<ShellAnswer> {
    const { sandbox, find, dispatch, access, log } = this.#options;
    const url = new URL(`http://sandbox${path}`);
    const found = find(method, url.pathname);
    if (found === undefined)
      throw new HttpError(404, `There is no route ${method} ${url.pathname}`, { reason: "route_not_found" });
    const presented = { headers: lowerCased(headers ?? {}), url };
    return dispatch(found.route, {
      sandbox,
      params: found.params,
      query: url.searchParams,
      body: found.route.method === "POST" ? body : undefined,
      headerSession: access.sessionOf(sandbox.record.accessToken, presented),
      log,
      signal,
    });
  }
}

function lowerCased(headers: Readonly<Record<string, string>>): SurfaceRequest["headers"] {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));
}

async function* enclosed(
  before: string,
  parts: AsyncIterable<Buffer>,
  after: string,
): AsyncGenerator<Buffer> {
  yield Buffer.from(before);
  yield* parts;
  yield Buffer.from(after);
}

/** Sends messages by a WebSocket, one after the other, each when the client has taken the one before. */
class SocketWriter {
  readonly #socket: WebSocket;
  readonly #turns = new Semaphore();

  constructor(socket: WebSocket) {
    this.#socket = socket;
  }

  /** Resolves when the message was handed on, or the connection is lost. */
  send(message: Readonly<Record<string, unknown>>): Promise<void> {
    return this.sendParts([Buffer.from(JSON.stringify(message))]);
  }

  /** As `send`, for a message in parts. When the parts fail, so does the connection. @throws what they throw. */
  sendParts(parts: AsyncIterable<Buffer> | Iterable<Buffer>): Promise<void> {
    return this.#turns.run(async () => {
      try {
        for await (const part of parts) {
          if (this.#socket.readyState !== this.#socket.OPEN) return;
          await this.#send(part, false);
        }
      } catch (error) {
        // Nothing else can be said in a message that was begun.
        this.#socket.terminate();
        throw error;
      }
      await this.#send(Buffer.alloc(0), true);
    });
  }

  #send(data: Buffer, fin: boolean): Promise<void> {
    return new Promise((resolve) => this.#socket.send(data, { binary: false, fin }, () => resolve()));
  }
}

const MAX_ID_LENGTH = 256;
const id = z.string().min(1).max(MAX_ID_LENGTH);

/** What a client sends by WebSocket. Bodies are JSON values, checked by their routes. */
const socketMessage = z.discriminatedUnion("type", [
  z.object({
    type: z.literal("request"),
    id,
    method: z.string(),
    path: z.string().startsWith("/"),
    body: z.unknown().optional(),
    headers: z.record(z.string(), z.string()).nullish(),
  }),
  z.object({ type: z.literal("cancel"), id }),
]);

type SocketMessage = z.infer<typeof socketMessage>;
type SocketRequest = Extract<SocketMessage, { readonly type: "request" }>;

/** The message in a frame. @throws where it is none. */
function messageOfFrame(data: Buffer, isBinary: boolean): SocketMessage {
  if (isBinary) throw new Error("messages are text");
  return socketMessage.parse(parseJson(data));
}
