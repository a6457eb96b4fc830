import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { request } from "node:http";
import { once } from "node:events";
import { join } from "node:path";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { eventually } from "@coppice/core/testing";
import { exchange } from "../../harness/clients/exchange.js";
import { API_KEY } from "../../harness/server/api-key.js";
import { type Installation, makeInstallation, ServerProcess } from "../../harness/server/server-process.js";

const CORE = fileURLToPath(new URL("../../../../core/dist/index.js", import.meta.url));
const KEYS = Array.from({ length: 12 }, (_, index) => `e2b_${String(index).padStart(40, "0")}`);
const [NEW_KEY = "", OTHER_KEY = ""] = KEYS;

const RELOADED = "configuration reloaded";
const RESTART = "changed settings that need a restart";
const UNUSABLE = "the configuration cannot be used: nothing of it is reloaded";
const NOT_TAKEN = "what has changed could not be taken over; the old stays in use";

/** Streams to who has asked for `/stream`, and refuses a setting when it is told of it. */
const STREAMS = `
import { definePlugin } from ${JSON.stringify(CORE)};
const settings = {
  safeParse: (data) => ({ success: true, data: { word: "one", number: 1, ...data } }),
};
export default definePlugin({
  name: "streams",
  config: settings,
  setup(plugin) {
    let open;
    const router = plugin.http("api");
    router.get("/stream", (ctx) => {
      ctx.respond = false;
      open = ctx.res;
      open.writeHead(200).write("begun");
    });
    router.post("/stream", (ctx) => void (open.end(" and ended"), (ctx.body = {})));
    router.get("/settings", (ctx) => void (ctx.body = plugin.config));
    plugin.onReload(["word", "number"], () => {
      if (plugin.config.word === "bad") throw new Error("this word is refused");
    });
  },
});
`;

/** Adds a key to the configuration while its server starts, and tells it so. */
const HASTY = (configFile: string): string => `
import { readFileSync, writeFileSync } from "node:fs";
import { definePlugin } from ${JSON.stringify(CORE)};
export default definePlugin({
  name: "hasty",
  setup(plugin) {
    plugin.onStart(() => {
      const config = JSON.parse(readFileSync(${JSON.stringify(configFile)}, "utf8"));
      config.plugins.access.apiKeys.push(${JSON.stringify(NEW_KEY)});
      writeFileSync(${JSON.stringify(configFile)}, JSON.stringify(config));
      process.kill(process.pid, "SIGHUP");
      return new Promise((resolve) => process.once("SIGHUP", resolve));
    });
  },
});
`;

interface Config {
  log: object;
  http: Record<string, unknown>;
  sandboxes?: Record<string, unknown>;
  listeners: Record<string, object>;
  plugins: Record<string, Record<string, unknown>>;
}

interface LogLine {
  readonly msg: string;
  readonly changed?: readonly string[];
  readonly settings?: readonly string[];
  readonly problems?: readonly string[];
  readonly plugin?: string;
}

/** A running server, and its configuration to be changed. */
class Reloading implements AsyncDisposable {
  readonly server: ServerProcess;
  readonly #installation: Installation;

  private constructor(server: ServerProcess, installation: Installation) {
    this.server = server;
    this.#installation = installation;
  }

  static async start(plugins: Readonly<Record<string, unknown>> = {}): Promise<Reloading> {
    const installation = await makeInstallation({
      config: { log: { level: "info" } },
      plugins: () => plugins,
    });
    const { directory, configFile } = installation;
    try {
      await writeFile(join(directory, "streams.mjs"), STREAMS);
      await writeFile(join(directory, "hasty.mjs"), HASTY(configFile));
      const config = JSON.parse(await readFile(configFile, "utf8")) as Config;
      for (const slow of ["jupyter", "templates", "files"]) delete config.plugins[slow];
      await writeFile(configFile, JSON.stringify(config));
      return new Reloading(await ServerProcess.start(configFile), installation);
    } catch (error) {
      await installation.remove();
      throw error;
    }
  }

  get lines(): readonly LogLine[] {
    return this.server.printed
      .filter((line) => line.startsWith("{"))
      .map((line) => JSON.parse(line) as LogLine);
  }

  async change(how: (config: Config) => void): Promise<void> {
    const { configFile } = this.#installation;
    const config = JSON.parse(await readFile(configFile, "utf8")) as Config;
    how(config);
    await writeFile(configFile, JSON.stringify(config));
  }

  async write(text: string): Promise<void> {
    await writeFile(this.#installation.configFile, text);
  }

  /** Sends SIGHUP; resolves with what the server logs from then on, once it has said that. */
  async hangUp(last = RELOADED): Promise<readonly LogLine[]> {
    const begun = this.lines.length;
    this.server.signal("SIGHUP");
    await eventually(last, () => this.lines.slice(begun).some(({ msg }) => msg === last));
    return this.lines.slice(begun);
  }

  async call(route: string, body?: object, key = API_KEY) {
    const [method = "", path = ""] = route.split(" ");
    const response = await fetch(this.server.url + path, {
      method,
      headers: { "x-api-key": key, "content-type": "application/json" },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    return { status: response.status, text: await response.text() };
  }

  async statusWith(key: string): Promise<number> {
    return (await exchange(this.server.url, { path: "/sandboxes", headers: { "x-api-key": key } })).status;
  }

  create(): ReturnType<Reloading["call"]> {
    return this.call("POST /sandboxes", { templateID: "base", timeout: 60 });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.server.stop();
    await this.#installation.remove();
  }
}

describe("a server that is told to read its configuration again", { timeout: 300_000 }, () => {
  it("accepts a new key and refuses a removed one from the next request on, and goes on with what that one has open", async () => {
    await using running = await Reloading.start({ "./streams.mjs": {} });
    assert.equal(await running.statusWith(NEW_KEY), 401);
    const asked = request(`${running.server.url}/stream`, { headers: { "x-api-key": API_KEY } }).end();
    const [stream] = (await once(asked, "response")) as [import("node:http").IncomingMessage];
    const ended = once(stream, "end");
    let streamed = "";
    stream.setEncoding("utf8").on("data", (text: string) => (streamed += text));
    await eventually("the stream has begun", () => streamed === "begun");

    await running.change(({ plugins }) => (plugins["access"] = { apiKeys: [NEW_KEY] }));
    const [line] = await running.hangUp();
    assert.deepEqual(line?.changed, ["plugins.access.apiKeys"]);
    assert.equal(await running.statusWith(NEW_KEY), 200);
    assert.equal(await running.statusWith(API_KEY), 401);
    assert.equal((await running.call("POST /stream", {}, NEW_KEY)).status, 200);
    await ended;
    assert.equal(streamed, "begun and ended");
    assert.ok(!running.server.printed.some((text) => text.includes(NEW_KEY)), "a key is in the log");
  });

  it("changes quotas, rates and limits for the next request, and ends no sandbox for them", async () => {
    await using running = await Reloading.start();
    const quota = (sandboxes: number) => (config: Config) => {
      config.plugins["access"] = { apiKeys: [API_KEY], quotas: { everybody: { sandboxes } } };
    };
    for (let made = 0; made < 2; made += 1) assert.equal((await running.create()).status, 201);
    await running.change(quota(1));
    await running.hangUp();
    const refused = await running.create();
    assert.equal(refused.status, 429);
    assert.match(refused.text, /concurrent E2B sandboxes \(1\)/);
    assert.equal(JSON.parse((await running.call("GET /sandboxes")).text).length, 2);
    await running.change(quota(3));
    await running.hangUp();
    assert.equal((await running.create()).status, 201);

    await running.change((config) => {
      config.sandboxes = {
        maximumTimeout: "10m",
        templates: { "base": { limits: { memoryMiB: 77 } }, "code-interpreter-v1": {} },
      };
      config.plugins["access"] = {
        apiKeys: [API_KEY],
        rateLimits: { perKey: { requests: 1, per: "1h" } },
      };
    });
    const [line] = await running.hangUp();
    assert.deepEqual(line?.changed, [
      "sandboxes.maximumTimeout",
      "sandboxes.templates.base.limits",
      "plugins.access.quotas",
      "plugins.access.rateLimits",
    ]);
    assert.equal((await running.create()).status, 429);
    await running.change(({ plugins }) => (plugins["access"] = { apiKeys: [API_KEY] }));
    await running.hangUp();
    const made = await running.create();
    const { sandboxID } = JSON.parse(made.text) as { sandboxID: string };
    assert.equal(JSON.parse((await running.call(`GET /sandboxes/${sandboxID}`)).text).memoryMB, 77);
    const tooLong = await running.call("POST /sandboxes", { templateID: "base", timeout: 601 });
    assert.equal(tooLong.status, 400, tooLong.text);
  });

  it("changes nothing by a file that it cannot use, says why, and recovers", async () => {
    await using running = await Reloading.start();
    const refusals: readonly [string | ((config: Config) => void), RegExp][] = [
      [`{"plugins": {`, /coppice\.yaml:1:/],
      [
        ({ plugins }) => (plugins["access"] = { apiKeys: ["short"] }),
        /plugins\.access\.apiKeys\.0.*at least 24/,
      ],
      [({ plugins }) => (plugins["access"] = { apiKeys: [NEW_KEY], kotas: {} }), /unknown key 'kotas'/],
      [(config) => (config.plugins["no-such"] = {}), /cannot load plugin 'no-such'/],
      [({ plugins }) => (plugins["access"] = { apiKeys: ["${file:nowhere}"] }), /ENOENT/],
      [
        (config) => (config.sandboxes = { defaultTimeout: "2h", maximumTimeout: "1h" }),
        /longer than maximumTimeout/,
      ],
    ];
    let usable = "";
    await running.change((config) => void (usable = JSON.stringify(config)));
    for (const [unusable, why] of refusals) {
      await running.write(usable);
      await (typeof unusable === "string"
        ? running.write(unusable)
        : running.change((config) => {
            config.plugins["access"] = { apiKeys: [NEW_KEY] };
            unusable(config);
          }));
      const [line] = await running.hangUp(UNUSABLE);
      assert.match(line?.problems?.join("\n") ?? "", why);
      assert.deepEqual([await running.statusWith(API_KEY), await running.statusWith(NEW_KEY)], [200, 401]);
    }
    await running.write(usable);
    assert.deepEqual((await running.hangUp())[0]?.changed, []);
  });

  it("names in one line what needs a restart, and takes the rest over", async () => {
    await using running = await Reloading.start();
    await running.change((config) => {
      config.http["idleTimeout"] = "1m";
      config.listeners["extra"] = { port: 0 };
      delete config.plugins["events"];
      config.plugins["shell-sessions"] = {};
      config.sandboxes = { templates: { base: {} }, maximum: 5 };
      config.plugins["access"] = { apiKeys: [API_KEY, NEW_KEY], audit: { maxEntries: 7 } };
    });
    const lines = await running.hangUp(RESTART);
    assert.deepEqual(
      lines.map(({ msg }) => msg),
      [RELOADED, RESTART],
    );
    assert.deepEqual(lines[0]?.changed, ["sandboxes.maximum", "plugins.access.apiKeys"]);
    assert.deepEqual([...(lines[1]?.settings ?? [])].toSorted(), [
      "http.idleTimeout",
      "listeners.extra",
      "plugins.access.audit.maxEntries",
      "plugins.events",
      "plugins.shell-sessions",
      "sandboxes.templates.code-interpreter-v1",
    ]);
    assert.equal(await running.statusWith(NEW_KEY), 200);
    assert.equal((await running.call("GET /events/sandboxes")).status, 200, "the plugin goes on");
  });

  it("leaves a plugin that refuses a change with all of its settings, and the others with theirs", async () => {
    await using running = await Reloading.start({ "./streams.mjs": {} });
    const settings = async (): Promise<unknown> => JSON.parse((await running.call("GET /settings")).text);
    await running.change(({ plugins }) => {
      plugins["./streams.mjs"] = { word: "bad", number: 2 };
      plugins["access"] = { apiKeys: [API_KEY, NEW_KEY] };
    });
    const lines = await running.hangUp(NOT_TAKEN);
    assert.deepEqual(
      lines.map(({ msg, plugin }) => [msg, plugin]),
      [
        [RELOADED, undefined],
        [NOT_TAKEN, "streams"],
      ],
    );
    assert.deepEqual(lines[0]?.changed, ["plugins.access.apiKeys"]);
    assert.deepEqual(await settings(), { word: "one", number: 1 });
    assert.equal(await running.statusWith(NEW_KEY), 200);
    await running.change(({ plugins }) => (plugins["./streams.mjs"] = { word: "two", number: 2 }));
    await running.hangUp();
    assert.deepEqual(await settings(), { word: "two", number: 2 });
  });

  it("has the newest file in the end, however often it is told", async () => {
    await using running = await Reloading.start();
    for (const key of KEYS) {
      await running.change(({ plugins }) => (plugins["access"] = { apiKeys: [API_KEY, key] }));
      for (let sent = 0; sent < 10; sent += 1) running.server.signal("SIGHUP");
    }
    const last = KEYS.at(-1) ?? "";
    await eventually("the last key is accepted", async () => (await running.statusWith(last)) === 200);
    assert.equal(await running.statusWith(OTHER_KEY), 401);
    assert.equal((await running.create()).status, 201);
  });

  it("reloads after its start what has changed meanwhile", async () => {
    await using running = await Reloading.start({ "./hasty.mjs": {} });
    await eventually("the key is accepted", async () => (await running.statusWith(NEW_KEY)) === 200);
  });

  it("stops as it was going to when it is told while it stops", async () => {
    await using running = await Reloading.start({ "./streams.mjs": {} });
    const asked = request(`${running.server.url}/stream`, { headers: { "x-api-key": API_KEY } }).end();
    const [stream] = (await once(asked, "response")) as [import("node:http").IncomingMessage];
    stream.on("error", () => undefined).resume();
    await running.change(({ plugins }) => (plugins["access"] = { apiKeys: [NEW_KEY] }));
    running.server.signal("SIGTERM");
    await eventually("it stops", () => running.lines.some(({ msg }) => msg.startsWith("stopping")));
    for (let sent = 0; sent < 10; sent += 1) running.server.signal("SIGHUP");
    assert.deepEqual(await running.server.ended, { code: 0, signal: null });
    assert.ok(!running.lines.some(({ msg }) => msg === RELOADED));
  });
});
