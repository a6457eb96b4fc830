import { setTimeout as pause } from "node:timers/promises";
import { printFailure, visibleText } from "@coppice/core/client";
import type { ApiClient, components } from "e2b";
import type { ServerOptions } from "../connection/connection.js";
import { apiOf, refused } from "../connection/open-sandbox.js";

type Entry = components["schemas"]["SandboxLogEntry"];

const FULL_PAGE = 1000;
const POLL_MS = 1000;

interface LogsOptions extends ServerOptions {
  readonly follow?: true | undefined;
  readonly json?: true | undefined;
  readonly raw?: true | undefined;
}

/**
 * Prints the output of a sandbox's commands, also after its end: stderr to stderr, the rest to stdout. On a terminal
 * control characters are shown in readable form, unless `--raw` is given.
 */
export async function logs(id: string, { follow, json, raw, ...server }: LogsOptions): Promise<number> {
  for (const reader = new LogReader(id, server); ;) {
    const entries = await reader.next();
    for (const one of entries) {
      const output = !json && one.fields["stream"] === "stderr" ? process.stderr : process.stdout;
      const text = json ? JSON.stringify(one) : one.message;
      output.write(`${output.isTTY && !raw ? visibleText(text) : text}\n`);
    }
    if (entries.length > 0) continue;
    if (!follow) return 0;
    await pause(POLL_MS);
  }
}

/**
 * Reads pages of the log. A page begins with a moment, not with an entry: entries of that moment that were read already
 * are left out.
 */
class LogReader {
  readonly #api: ApiClient["api"];
  readonly #id: string;
  #sinceMs = 0;
  #readAtThatMoment = 0;

  constructor(id: string, server: ServerOptions) {
    this.#api = apiOf(server);
    this.#id = id;
  }

  /** Unread lines; empty when there are no more now. */
  async next(): Promise<readonly Entry[]> {
    const { data, error } = await this.#api.GET("/v2/sandboxes/{sandboxID}/logs", {
      params: { path: { sandboxID: this.#id }, query: { cursor: this.#sinceMs } },
    });
    if (error !== undefined) throw refused(error);
    const found = data.logs;
    const fresh = found.slice(this.#readAtThatMoment);
    const lastMs = Date.parse(found.at(-1)?.timestamp ?? "");
    if (fresh.length > 0) {
      this.#sinceMs = lastMs;
      this.#readAtThatMoment = found.filter(({ timestamp }) => Date.parse(timestamp) === lastMs).length;
    } else if (found.length >= FULL_PAGE) {
      // More entries of one moment than a page holds: the API cannot ask for the rest.
      printFailure(`lines of ${found[0]?.timestamp} after the first ${FULL_PAGE} are left out`);
      this.#sinceMs += 1;
      this.#readAtThatMoment = 0;
      return this.next();
    }
    return fresh;
  }
}
