import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { type IncomingMessage, request } from "node:http";
import { setTimeout as pause } from "node:timers/promises";
import { WebSocket } from "ws";
import { DurableTerminal, type TerminalSize } from "./durable-terminal.js";
import { type Answer, exchange } from "./exchange.js";

export interface V1Sandbox {
  readonly id: string;
  readonly name: string;
  readonly state: "creating" | "running" | "stopped" | "deleting";
  readonly tier: "ephemeral" | "persistent";
  readonly created_at: string;
  readonly last_activity_at?: string;
  readonly auto_stop_minutes: number;
  readonly disk_gb: number;
  readonly cpu_milli?: number;
  readonly memory_mb?: number;
  readonly deadline?: string;
  readonly workdir?: string;
}

export type V1Phase = "running" | "exited" | "killed" | "lost";

export interface V1Command {
  readonly command_id: string;
  readonly phase: V1Phase;
  readonly started_at: string;
  readonly exited_at?: string | null;
  readonly exit_code?: number | null;
}

export interface V1LogPage {
  readonly bytes: string;
  readonly next_cursor: number;
  readonly phase: V1Phase;
  readonly exit_code: number | null;
  readonly truncated_before?: number;
}

/** One message of an event stream: a comment has nothing else. */
export interface V1Event {
  readonly event?: string;
  readonly id?: string;
  readonly data?: string;
  readonly comment?: string;
}

export interface V1Run {
  readonly commandId: string;
  readonly output: string;
  readonly phase: V1Phase;
  readonly exitCode: number | null;
}

export interface DurableCommandsOptions {
  readonly url: string;
  readonly token: string;
  /** Between two pages of a log; 500 ms in the original's CLI. */
  readonly pollMs?: number;
  /** Pause between two requests for the phase, once the log has ended; 1 s in the original's CLI. */
  readonly statusMs?: number;
}

/** An answer that is no success, by the contract's error envelope. */
export class V1Refusal extends Error {
  constructor(
    readonly status: number,
    readonly body: { readonly code: string; readonly message: string; readonly request_id: string },
  ) {
    super(`${status} ${JSON.stringify(body)}`);
  }
}

const percent = encodeURIComponent;
const LOOKS_LIKE_ID = /^(?:sb-)?[0-9a-f]{8}-|^[a-z0-9]{20,}$/;

/**
 * A client of `/v1` that was written from `contracts/commands-v1.md` alone, without a look at the server. It works
 * as the original's CLI does: a sandbox by id or name, argv to a command, the log by cursor, the phase, the exit code.
 */
export class DurableCommandsClient {
  readonly #options: Required<DurableCommandsOptions>;

  constructor(options: DurableCommandsOptions) {
    this.#options = { pollMs: 500, statusMs: 1000, ...options };
  }

  /** Any exchange; a body that is no text or bytes goes as JSON, null too. */
  async ask(
    method: string,
    path: string,
    body?: unknown,
    headers: Readonly<Record<string, string>> = {},
  ): Promise<Answer> {
    const raw = body === undefined || typeof body === "string" || body instanceof Uint8Array;
    return exchange(this.#options.url, {
      method,
      path: `/v1${path}`,
      headers: {
        authorization: `Bearer ${this.#options.token}`,
        ...(body !== undefined && { "content-type": "application/json" }),
        ...headers,
      },
      ...(body !== undefined && { body: raw ? body : JSON.stringify(body) }),
    });
  }

  /** The JSON of a success. @throws V1Refusal otherwise. */
  async call<T>(
    method: string,
    path: string,
    body?: unknown,
    headers?: Readonly<Record<string, string>>,
  ): Promise<T> {
    const answer = await this.ask(method, path, body, headers);
    if (answer.status >= 300) throw new V1Refusal(answer.status, answer.json() as V1Refusal["body"]);
    return (answer.body.length === 0 ? undefined : answer.json()) as T;
  }

  whoami = () => this.call<Record<string, unknown>>("GET", "/auth/whoami");
  create = (wanted: object) => this.call<V1Sandbox>("POST", "/sandboxes", wanted);
  list = (query = "") => this.call<V1Sandbox[]>("GET", `/sandboxes${query}`);
  sandbox = (ref: string) => this.call<V1Sandbox>("GET", `/sandboxes/${percent(ref)}`);
  rename = (ref: string, name: string) =>
    this.call<V1Sandbox | undefined>("PATCH", `/sandboxes/${percent(ref)}`, { name });
  remove = (ref: string) => this.call<unknown>("DELETE", `/sandboxes/${percent(ref)}`);
  start = (ref: string, body?: unknown) =>
    this.call<unknown>("POST", `/sandboxes/${percent(ref)}/start`, body);
  stop = (ref: string, body?: unknown) => this.call<unknown>("POST", `/sandboxes/${percent(ref)}/stop`, body);
  extend = (ref: string, wanted: object) =>
    this.call<unknown>("POST", `/sandboxes/${percent(ref)}/extend`, wanted);

  /** The sandbox of an id, or the one of a name; the CLI asks for a name by the list. */
  async resolve(ref: string): Promise<V1Sandbox> {
    if (LOOKS_LIKE_ID.test(ref)) return this.sandbox(ref);
    const [found] = await this.list(`?name=${percent(ref)}`);
    return found ?? this.sandbox(ref);
  }

  /** The sandbox of a name, made when there is none, started when it is stopped. */
  async ensure(name: string, wanted: object): Promise<V1Sandbox> {
    const [found] = await this.list(`?name=${percent(name)}`);
    if (found === undefined) return this.create({ ...wanted, name });
    if (found.state === "stopped") await this.start(found.id, null);
    return this.sandbox(found.id);
  }

  command = (ref: string, id: string) => this.call<V1Command>("GET", this.#of(ref, id));
  kill = (ref: string, id: string) => this.call<undefined>("DELETE", this.#of(ref, id));
  launch = (ref: string, argv: readonly string[], more: object = {}, headers = {}) =>
    this.call<V1Command>("POST", `/sandboxes/${percent(ref)}/commands`, { argv, ...more }, headers);
  page = (ref: string, id: string, cursor: number, more = "") =>
    this.call<V1LogPage>("GET", `${this.#of(ref, id)}/logs?cursor=${cursor}&stream=false${more}`);

  /** Starts a command, prints its output as it comes, and gives its end: what the CLI does. */
  async run(
    ref: string,
    argv: readonly string[],
    {
      print = () => {},
      ...more
    }: { readonly print?: (text: string) => void; readonly env?: object; readonly cwd?: string } = {},
  ): Promise<V1Run> {
    const { command_id: commandId } = await this.launch(ref, argv, { ...more, detach: true });
    const output = await this.tail(ref, commandId, { print });
    const { phase, exit_code: exitCode = null } = await this.settled(ref, commandId);
    return { commandId, output, phase, exitCode };
  }

  /** The log from a cursor to its end, page by page. */
  async tail(
    ref: string,
    id: string,
    {
      cursor: from = 0,
      print = () => {},
    }: { readonly cursor?: number; readonly print?: (text: string) => void } = {},
  ): Promise<string> {
    const texts: string[] = [];
    for (let cursor = from; ;) {
      const { bytes, next_cursor: next, phase } = await this.page(ref, id, cursor);
      texts.push(bytes);
      print(bytes);
      if (next < cursor) throw new Error(`the cursor goes back from ${cursor} to ${next}`);
      if (next === cursor && phase !== "running") return texts.join("");
      if (next === cursor) await pause(this.#options.pollMs);
      cursor = next;
    }
  }

  /** The command's record once it does not run any more. */
  async settled(ref: string, id: string): Promise<V1Command> {
    for (;;) {
      const command = await this.command(ref, id);
      if (command.phase !== "running") return command;
      await pause(this.#options.statusMs);
    }
  }

  /** One connection of an event stream, message by message, until the server or the reader ends it. */
  async *follow(
    ref: string,
    id: string,
    { query = "?follow=true", lastEventId }: { readonly query?: string; readonly lastEventId?: string } = {},
  ): AsyncGenerator<V1Event> {
    const response = await this.#open(`${this.#of(ref, id)}/logs${query}`, {
      accept: "text/event-stream",
      ...(lastEventId !== undefined && { "last-event-id": lastEventId }),
    });
    let rest = "";
    try {
      for await (const chunk of response.setEncoding("utf8") as AsyncIterable<string>) {
        const messages = (rest + chunk).split("\n\n");
        rest = messages.pop() ?? "";
        yield* messages.map(messageOf);
      }
    } finally {
      response.destroy();
    }
  }

  /** The log by event stream, with a new connection from the last id as often as one ends early. */
  async followToEnd(
    ref: string,
    id: string,
    {
      dropAfter = Infinity,
    }: { /** Events after which the client hangs up itself. */ readonly dropAfter?: number } = {},
  ): Promise<{ readonly output: string; readonly end: unknown; readonly connections: number }> {
    let output = "";
    let lastEventId: string | undefined;
    for (let connections = 1; ; connections += 1) {
      let seen = 0;
      const resume = lastEventId === undefined ? {} : { lastEventId };
      for await (const { event, id: at, data = "" } of this.follow(ref, id, resume)) {
        if (event === "end") return { output, end: JSON.parse(data) as unknown, connections };
        if (event !== "log") continue;
        output += (JSON.parse(data) as V1LogPage).bytes;
        lastEventId = at;
        if ((seen += 1) >= dropAfter) break;
      }
    }
  }

  oneShot = (wanted: object, query = "") => this.ask("POST", `/one-shot-runs${query}`, wanted);

  /** The tar file of a folder, or of paths. */
  export = (ref: string, wanted: object) =>
    this.ask("POST", `/sandboxes/${percent(ref)}/files/export`, wanted);

  /** Unpacks a tar file in `dest`. */
  import(ref: string, dest: string, tarball: Uint8Array): Promise<Answer> {
    const boundary = randomUUID();
    const part = (disposition: string) =>
      `--${boundary}\r\nContent-Disposition: form-data; ${disposition}\r\n\r\n`;
    const body = Buffer.concat([
      Buffer.from(`${part('name="dest"')}${dest}\r\n`),
      Buffer.from(part('name="tarball"; filename="archive.tar"')),
      tarball,
      Buffer.from(`\r\n--${boundary}--\r\n`),
    ]);
    const headers = { "content-type": `multipart/form-data; boundary=${boundary}` };
    return this.ask("POST", `/sandboxes/${percent(ref)}/files/import`, body, headers);
  }

  /** A terminal, once it is connected. @throws Error with the status when the server refuses the upgrade. */
  async attach(ref: string, sid: string, size?: TerminalSize): Promise<DurableTerminal> {
    const url = `${this.#options.url.replace(/^http/, "ws")}/v1/sandboxes/${percent(ref)}/sessions/${percent(sid)}`;
    const socket = new WebSocket(url, { headers: { authorization: `Bearer ${this.#options.token}` } });
    const terminal = new DurableTerminal(socket);
    await once(socket, "open");
    terminal.resize(size);
    return terminal;
  }

  async #open(path: string, headers: Readonly<Record<string, string>>): Promise<IncomingMessage> {
    const { url, token } = this.#options;
    const outgoing = request(`${url}/v1${path}`, {
      headers: { authorization: `Bearer ${token}`, ...headers },
      agent: false,
    });
    outgoing.end();
    const [response] = (await once(outgoing, "response")) as [IncomingMessage];
    if (response.statusCode === 200) return response;
    const text = (await response.setEncoding("utf8").toArray()).join("");
    throw new V1Refusal(response.statusCode ?? 0, JSON.parse(text) as V1Refusal["body"]);
  }

  #of = (ref: string, id: string) => `/sandboxes/${percent(ref)}/commands/${percent(id)}`;
}

function messageOf(text: string): V1Event {
  const fields: Record<string, string> = {};
  for (const line of text.split("\n")) {
    const colon = line.indexOf(":");
    const name = colon === 0 ? "comment" : line.slice(0, colon);
    const value = line.slice(colon + 1).replace(/^ /, "");
    fields[name] = name in fields ? `${fields[name]}\n${value}` : value;
  }
  return fields;
}
