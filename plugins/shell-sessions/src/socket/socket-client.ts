import type { IncomingMessage } from "node:http";
import {
  type Clock,
  holdBytes,
  HttpError,
  type LiveSandbox,
  type Logger,
  releaseBytes,
  type SurfaceRequest,
  takeMessages,
  toHttpError,
  type WebSocket,
} from "@coppice/core";
import { bytesJson } from "@coppice/plugin-commands";
import { ShellError } from "../shell/shell-error.js";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import type { Dispatch } from "../wire/dispatch.js";
import { eventTexts } from "../wire/event-frames.js";
import type { ShellAnswer } from "../wire/route.js";
import type { routeMatcher } from "./route-match.js";
import type { ShellAccess } from "../wire/shell-access.js";
import { errorAnswer } from "../wire/shell-errors.js";
import { messageOfFrame, type SocketMessage, type SocketRequest } from "./socket-message.js";
import { SocketWriter } from "./socket-writer.js";

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
