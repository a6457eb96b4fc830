import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Readable, Writable } from "node:stream";

const CHROMIUM = "/usr/bin/chromium";
const FLAGS = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--disable-dev-shm-usage",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--no-proxy-server",
  "--remote-debugging-pipe",
];

/** Why there is no browser; false when there is one. */
export const WITHOUT_BROWSER = existsSync(CHROMIUM) ? false : `${CHROMIUM} is not installed`;

// The descriptors that the browser reads from, and writes to.
const COMMANDS = 3;
const REPLIES = 4;

interface Reply {
  readonly id?: number;
  readonly result?: Record<string, unknown>;
  readonly error?: { readonly message: string };
}

/**
 * Debian's Chromium without a window, with a profile of its own, driven by the DevTools protocol over a pipe: it ends when
 * that closes, so none is left, however this process ends.
 */
export class Browser implements AsyncDisposable {
  readonly #child: ChildProcess;
  readonly #profile: string;
  readonly #commands: Writable;
  readonly #waiting = new Map<number, (reply: Reply) => void>();
  #lastId = 0;

  private constructor(child: ChildProcess, profile: string) {
    this.#child = child;
    this.#profile = profile;
    this.#commands = child.stdio[COMMANDS] as Writable;
    this.#commands.on("error", () => undefined);
    void this.#listen(child.stdio[REPLIES] as Readable);
  }

  /** @param names that are 127.0.0.1 to it, whatever a resolver says; all others do not exist. */
  static async start(names: readonly string[]): Promise<Browser> {
    const profile = await mkdtemp(join(tmpdir(), "coppice-browser-"));
    const rules = [...names, "*.localhost"].map((name) => `MAP ${name} 127.0.0.1`);
    const child = spawn(
      CHROMIUM,
      [
        ...FLAGS,
        `--user-data-dir=${profile}`,
        `--host-resolver-rules=${[...rules, "MAP * ~NOTFOUND", "EXCLUDE 127.0.0.1", "EXCLUDE localhost"].join(", ")}`,
      ],
      { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] },
    );
    await once(child, "spawn");
    return new Browser(child, profile);
  }

  /** Opens a page. */
  async open(url: string): Promise<Page> {
    const { targetId } = await this.call("Target.createTarget", { url: "about:blank" });
    const { sessionId } = await this.call("Target.attachToTarget", { targetId, flatten: true });
    const page = new Page(this, String(sessionId));
    await page.visit(url);
    return page;
  }

  /** @throws Error with what the browser says is wrong. */
  async call(method: string, params: object = {}, sessionId?: string): Promise<Record<string, unknown>> {
    const id = (this.#lastId += 1);
    const { promise, resolve } = Promise.withResolvers<Reply>();
    this.#waiting.set(id, resolve);
    this.#commands.write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    const { result = {}, error } = await promise;
    this.#waiting.delete(id);
    if (error !== undefined) throw new Error(`${method}: ${error.message}`);
    return result;
  }

  /** Replies are texts with a NUL behind each. */
  async #listen(replies: Readable): Promise<void> {
    let begun = "";
    for await (const text of replies.setEncoding("utf8") as AsyncIterable<string>) {
      const texts = (begun + text).split("\0");
      begun = texts.pop() ?? "";
      for (const each of texts) {
        const reply = JSON.parse(each) as Reply;
        if (reply.id !== undefined) this.#waiting.get(reply.id)?.(reply);
      }
    }
    for (const answer of this.#waiting.values()) answer({ error: { message: "the browser has ended" } });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const ended = once(this.#child, "exit");
    await this.call("Browser.close").catch(() => undefined);
    await ended;
    // Its child processes end a moment later, and may write until then.
    await rm(this.#profile, { recursive: true, force: true, maxRetries: 10, retryDelay: 200 });
  }
}

/** A tab. */
export class Page {
  readonly #browser: Browser;
  readonly #sessionId: string;

  constructor(browser: Browser, sessionId: string) {
    this.#browser = browser;
    this.#sessionId = sessionId;
  }

  /** Goes to a URL and waits until something was loaded, an error page of the server's, too. */
  async visit(url: string): Promise<void> {
    const { errorText } = await this.#call("Page.navigate", { url });
    if (typeof errorText === "string") throw new Error(`${url}: ${errorText}`);
    await this.run(
      "new Promise((loaded) => document.readyState === 'complete' ? loaded() : addEventListener('load', () => loaded()))",
    );
    const origin = await this.run("location.origin");
    if (origin !== new URL(url).origin) throw new Error(`${url} became ${String(origin)}`);
  }

  /** Runs an expression as a script of the page would; a promise is waited for. @throws Error of the script. */
  async run(expression: string): Promise<unknown> {
    const { result, exceptionDetails } = await this.#call("Runtime.evaluate", {
      expression,
      awaitPromise: true,
      returnByValue: true,
    });
    if (exceptionDetails !== undefined) throw new Error(JSON.stringify(exceptionDetails));
    return (result as { readonly value?: unknown }).value;
  }

  #call(method: string, params: object): Promise<Record<string, unknown>> {
    return this.#browser.call(method, params, this.#sessionId);
  }
}
