import { API_KEY } from "@coppice/test/harness/server/api-key.js";

/** What a server answered, as far as it tells of the sandbox. */
export type Told<T> =
  | { readonly is: "done"; readonly value: T }
  /** There is no such sandbox any more. */
  | { readonly is: "gone"; readonly why: string }
  /** Nothing is known: no answer, or one that says to try again. */
  | { readonly is: "unknown"; readonly why: string };

export interface Listed {
  readonly ids: ReadonlySet<string>;
  /** False when servers are named that did not answer. */
  readonly isComplete: boolean;
  /** By id, what its creator called it. */
  readonly names: ReadonlyMap<string, string>;
}

const REQUEST_MS = 3000;
const LIFE_SECONDS = 80_000;
const ENVD_PORT = "49983";

/** One at a time, and never half: what is read is a whole number. */
const INCREMENT =
  "exec 9>lock; flock 9; n=$(($(cat count 2>/dev/null || echo 0)+1)); echo $n >new; mv new count; echo $n";
const READ = "cat count 2>/dev/null || echo 0";

/** The operations of a fleet's clients, by plain requests to one server. */
export class Client {
  readonly #url: string;

  constructor(url: string) {
    this.#url = url;
  }

  /** @param name given to the server as metadata and as `Idempotency-Key`. @returns the sandbox's id */
  create(name: string): Promise<Told<string>> {
    const body = { templateID: "base", timeout: LIFE_SECONDS, metadata: { name }, secure: false };
    return this.#ask("POST", "/sandboxes", {
      body,
      headers: { "idempotency-key": name },
      read: async (answer) => ((await answer.json()) as { readonly sandboxID: string }).sandboxID,
    });
  }

  /** Raises the counter in a sandbox. @returns its value */
  increment(id: string): Promise<Told<number>> {
    return this.#run(id, INCREMENT);
  }

  read(id: string): Promise<Told<number>> {
    return this.#run(id, READ);
  }

  look(id: string): Promise<Told<void>> {
    return this.#ask("GET", `/sandboxes/${id}`, { read: nothing });
  }

  setTimeout(id: string): Promise<Told<void>> {
    return this.#ask("POST", `/sandboxes/${id}/timeout`, { body: { timeout: LIFE_SECONDS }, read: nothing });
  }

  kill(id: string): Promise<Told<void>> {
    return this.#ask("DELETE", `/sandboxes/${id}`, { read: nothing });
  }

  list(): Promise<Told<Listed>> {
    return this.#ask("GET", "/sandboxes", {
      read: async (answer) => {
        const all = (await answer.json()) as readonly {
          readonly sandboxID: string;
          readonly metadata?: { readonly name?: string };
        }[];
        return {
          ids: new Set(all.map(({ sandboxID }) => sandboxID)),
          isComplete: !answer.headers.has("x-unreached-servers"),
          names: new Map(all.map(({ sandboxID, metadata }) => [sandboxID, metadata?.name ?? ""])),
        };
      },
    });
  }

  #run(id: string, cmd: string): Promise<Told<number>> {
    return this.#ask("POST", "/commands", {
      body: { cmd },
      headers: { "e2b-sandbox-id": id, "e2b-sandbox-port": ENVD_PORT },
      read: async (answer) => {
        const text = await answer.text();
        const lines = text
          .trimEnd()
          .split("\n")
          .map((line) => JSON.parse(line) as Readonly<Record<string, unknown>>);
        const output = lines.find(({ type }) => type === "stdout")?.["data"];
        if (lines.at(-1)?.["exit_code"] !== 0 || typeof output !== "string") throw new Error(text);
        return Number(output);
      },
    });
  }

  async #ask<T>(
    method: string,
    path: string,
    {
      body,
      headers = {},
      read,
    }: {
      readonly body?: object;
      readonly headers?: Readonly<Record<string, string>>;
      readonly read: (answer: Response) => Promise<T>;
    },
  ): Promise<Told<T>> {
    try {
      const answer = await fetch(this.#url + path, {
        method,
        headers: { "x-api-key": API_KEY, "content-type": "application/json", ...headers },
        signal: AbortSignal.timeout(REQUEST_MS),
        ...(body && { body: JSON.stringify(body) }),
      });
      if (answer.ok) return { is: "done", value: await read(answer) };
      const why = `${answer.status} ${await answer.text()}`;
      return { is: /^(404|502) .*not found/i.test(why) ? "gone" : "unknown", why };
    } catch (error) {
      return { is: "unknown", why: String(error) };
    }
  }
}

async function nothing(answer: Response): Promise<void> {
  await answer.arrayBuffer();
}
