// A client of /v1 (docs/commands-v1.md), and a program that uses it: node examples/commands-v1.ts
import { setTimeout as delay } from "node:timers/promises";

export interface Sandbox {
  readonly id: string;
  readonly name: string;
  readonly state: "creating" | "running" | "stopped" | "deleting";
  readonly tier: "ephemeral" | "persistent";
  readonly deadline?: string;
}

export interface Command {
  readonly command_id: string;
  readonly phase: "running" | "exited" | "killed" | "lost";
  readonly exit_code?: number | null;
}

export interface LogPage {
  readonly bytes: string;
  readonly next_cursor: number;
  readonly truncated_before?: number;
  readonly phase?: Command["phase"];
}

export interface CreateSandbox {
  /** A template of the server. */
  readonly image: string;
  readonly name?: string;
  readonly tier?: Sandbox["tier"];
  readonly auto_stop_minutes?: number;
  readonly env?: Readonly<Record<string, string>>;
}

/** A refusal: `code` is one of docs/errors.md, `requestId` finds it in the server's log. */
export class RefusedError extends Error {
  readonly status: number;
  readonly code: string;
  readonly requestId: string;

  constructor(status: number, { code, message, request_id }: Record<string, string>) {
    super(message);
    this.status = status;
    this.code = code ?? "";
    this.requestId = request_id ?? "";
  }
}

export class Client {
  readonly #url: string;
  readonly #token: string;

  constructor({ url, token }: { readonly url: string; readonly token: string }) {
    this.#url = `${url}/v1`;
    this.#token = token;
  }

  /** With a key, a repeated call gets the sandbox of the first one. */
  createSandbox(wanted: CreateSandbox, key?: string): Promise<Sandbox> {
    return this.#json("POST", "/sandboxes", wanted, key);
  }

  /** @param sandbox id or name, as everywhere below. */
  getSandbox(sandbox: string): Promise<Sandbox> {
    return this.#json("GET", `/sandboxes/${sandbox}`);
  }

  stop(sandbox: string): Promise<Sandbox> {
    return this.#json("POST", `/sandboxes/${sandbox}/stop`);
  }

  start(sandbox: string): Promise<Sandbox> {
    return this.#json("POST", `/sandboxes/${sandbox}/start`);
  }

  async deleteSandbox(sandbox: string): Promise<void> {
    await this.#ask("DELETE", `/sandboxes/${sandbox}`);
  }

  run(sandbox: string, argv: readonly string[], key?: string): Promise<Command> {
    return this.#json("POST", `/sandboxes/${sandbox}/commands`, { argv }, key);
  }

  getCommand(sandbox: string, id: string): Promise<Command> {
    return this.#json("GET", `/sandboxes/${sandbox}/commands/${id}`);
  }

  async kill(sandbox: string, id: string): Promise<void> {
    await this.#ask("DELETE", `/sandboxes/${sandbox}/commands/${id}`);
  }

  readLog(sandbox: string, id: string, cursor = 0): Promise<LogPage> {
    return this.#json("GET", `/sandboxes/${sandbox}/commands/${id}/logs?cursor=${cursor}`);
  }

  /** A log from a cursor to the end of the command. A broken connection is made again where it broke. */
  async *follow(sandbox: string, id: string, from = 0): AsyncGenerator<LogPage> {
    let cursor = from;
    for (;;) {
      try {
        const path = `/sandboxes/${sandbox}/commands/${id}/logs?follow=true&cursor=${cursor}`;
        for await (const { event, data } of eventsOf(await this.#ask("GET", path))) {
          if (event === "end") return;
          const page = JSON.parse(data) as LogPage;
          cursor = page.next_cursor;
          yield page;
        }
      } catch (error) {
        if (error instanceof RefusedError) throw error;
      }
      await delay(500);
    }
  }

  async #json<T>(method: string, path: string, body?: object, key?: string): Promise<T> {
    return (await this.#ask(method, path, body, key)).json() as Promise<T>;
  }

  async #ask(method: string, path: string, body?: object, key?: string): Promise<Response> {
    const response = await fetch(this.#url + path, {
      method,
      headers: { authorization: `Bearer ${this.#token}`, ...(key && { "idempotency-key": key }) },
      ...(body && { body: JSON.stringify(body) }),
    });
    if (response.ok) return response;
    throw new RefusedError(response.status, (await response.json()) as Record<string, string>);
  }
}

/** The server-sent events of an answer, without its comments. */
async function* eventsOf(response: Response) {
  let text = "";
  for await (const chunk of response.body!.pipeThrough(new TextDecoderStream())) {
    const blocks = (text + chunk).split("\n\n");
    text = blocks.pop() ?? "";
    for (const block of blocks.filter((each) => !each.startsWith(":"))) {
      const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s, 2)));
      yield { event: String(fields["event"]), data: String(fields["data"]) };
    }
  }
}

if (import.meta.main) {
  const client = new Client({ url: process.env["E2B_API_URL"]!, token: process.env["E2B_API_KEY"]! });
  const { id } = await client.createSandbox({ image: "base", tier: "persistent" });
  const script = "for n in 1 2 3; do echo step $n; sleep 0.1; done; echo done > result; exit 7";
  const { command_id: command } = await client.run(id, ["/bin/sh", "-c", script]);
  for await (const { bytes } of client.follow(id, command)) process.stdout.write(bytes);
  console.log("exit code:", (await client.getCommand(id, command)).exit_code);
  console.log((await client.stop(id)).state);
  console.log((await client.start(id)).state);
  const { command_id: second } = await client.run(id, ["cat", "result"]);
  for await (const { bytes } of client.follow(id, second)) process.stdout.write(bytes);
  await client.deleteSandbox(id);
}
