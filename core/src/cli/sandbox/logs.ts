import { setTimeout as pause } from "node:timers/promises";
import { z } from "zod";
import { SandboxError } from "../../kernel/errors.js";
import { sandboxAction } from "./sandbox-action.js";
import { visibleText } from "../terminal.js";
import type { SandboxClient } from "./sandbox-client.js";

const FULL_PAGE = 1000;
const POLL_MS = 1000;

const entry = z.looseObject({
  timestamp: z.string(),
  message: z.string(),
  fields: z.looseObject({ stream: z.string().optional() }).optional(),
});
const page = z.object({ logs: z.array(entry) });
type Entry = z.infer<typeof entry>;

/**
 * Prints the output of a sandbox's commands, also after its end: stderr to stderr, the rest to stdout. On a terminal
 * control characters are shown in readable form, unless `--raw` is given.
 */
export const logs = sandboxAction({
  usage: "<id> [--follow] [--json] [--raw]",
  failed: 1,
  notFound: 2,
  options: {
    follow: { type: "boolean", default: false },
    json: { type: "boolean", default: false },
    raw: { type: "boolean", default: false },
  },
  takesArguments: true,
  async run(client, { positionals, values }) {
    const [id, ...more] = positionals;
    if (id === undefined || more.length > 0) throw new SandboxError("usage_invalid", "name one sandbox");
    for (const reader = new LogReader(client, id); ;) {
      const entries = await reader.next();
      for (const one of entries) print(one, values);
      if (entries.length > 0) continue;
      if (!values.follow) return 0;
      await pause(POLL_MS);
    }
  },
});

function print(one: Entry, { json, raw }: { readonly json: boolean; readonly raw: boolean }): void {
  const output = !json && one.fields?.stream === "stderr" ? process.stderr : process.stdout;
  const text = json ? JSON.stringify(one) : one.message;
  output.write(`${output.isTTY && !raw ? visibleText(text) : text}\n`);
}

/**
 * Reads pages of the log. A page begins with a moment, not with an entry: entries of that moment that were read already
 * are left out.
 */
class LogReader {
  readonly #client: SandboxClient;
  readonly #path: string;
  #sinceMs = 0;
  #readAtThatMoment = 0;

  constructor(client: SandboxClient, sandboxId: string) {
    this.#client = client;
    this.#path = `/v2/sandboxes/${encodeURIComponent(sandboxId)}/logs`;
  }

  /** Unread lines; empty when there are no more now. */
  async next(): Promise<readonly Entry[]> {
    const answer = await this.#client.request({ path: `${this.#path}?cursor=${this.#sinceMs}` });
    const { logs: found } = page.parse(await answer.json());
    const fresh = found.slice(this.#readAtThatMoment);
    const lastMs = Date.parse(found.at(-1)?.timestamp ?? "");
    if (fresh.length > 0) {
      this.#sinceMs = lastMs;
      this.#readAtThatMoment = found.filter(({ timestamp }) => Date.parse(timestamp) === lastMs).length;
    } else if (found.length >= FULL_PAGE) {
      // More entries of one moment than a page holds: the API cannot ask for the rest.
      process.stderr.write(
        `coppice: lines of ${found[0]?.timestamp} after the first ${FULL_PAGE} are left out\n`,
      );
      this.#sinceMs += 1;
      this.#readAtThatMoment = 0;
      return this.next();
    }
    return fresh;
  }
}
