import assert from "node:assert/strict";
import { mkdtemp, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { Counter } from "prom-client";
import { configFromValues } from "../config/read.js";
import { boot } from "./boot.js";
import { BootError, messageOf } from "../kernel/errors.js";
import { inject, injectable } from "../kernel/scope.js";
import { createToken } from "../kernel/token.js";
import { definePlugin, type Plugin } from "../plugin/plugin.js";
import { Backends } from "../sandbox/contract/backend.js";
import { Ledger } from "../sandbox/ledger/ledger.js";
import { Sandboxes } from "../sandbox/life/sandboxes.js";
import { greetingSocket } from "../testing/greeting-socket.js";
import { MemoryBackend, memoryBackend } from "../testing/memory-backend.js";
import { startTestServer } from "../testing/start-test-server.js";

interface Counting {
  next(): number;
}
const Counting = createToken<Counting>("boot-test-counting");

const counting = definePlugin({
  name: "counting",
  provides: [Counting],
  setup(plugin) {
    let count = 0;
    plugin.bindValue(Counting, { next: () => (count += 1) });
  },
});

async function refusal(plugins: readonly Plugin[]): Promise<BootError> {
  try {
    const server = await startTestServer({ plugins: plugins.map((plugin) => [plugin, {}] as const) });
    await server.stop();
  } catch (error) {
    assert.ok(error instanceof BootError, String(error));
    return error;
  }
  assert.fail("the server started");
}

it("a plugin meets what it requires as a value, whatever order the configuration has", async () => {
  const user = definePlugin({
    name: "user",
    requires: { counting: Counting, sandboxes: Sandboxes },
    setup(plugin, { counting: service }) {
      plugin.http("api").get("/next", (ctx) => {
        ctx.body = { next: service.next() };
      });
    },
  });
  await using server = await startTestServer({ plugins: [[user], [counting]] });
  assert.deepEqual(await (await fetch(`${server.url}/next`)).json(), { next: 1 });
  assert.equal(server.resolve(Counting).next(), 2);
});

it("a plugin may use a service that no other one provides", async () => {
  const met: unknown[] = [];
  const user = definePlugin({
    name: "user",
    uses: { counting: Counting },
    setup: (_, { counting: service }) => void met.push(service?.next()),
  });
  for (const plugins of [[[user]], [[user], [counting]]] as const) {
    await using _server = await startTestServer({ plugins });
  }
  assert.deepEqual(met, [undefined, 1]);
});

it("classes of a plugin are injected from its own scope", async () => {
  @injectable()
  class Doubling {
    constructor(@inject(Counting) readonly counting: Counting) {}
    next(): number {
      return this.counting.next() * 2;
    }
  }
  const doubling = definePlugin({
    name: "doubling",
    requires: { counting: Counting },
    setup(plugin) {
      const service = plugin.bind(Doubling).resolve(Doubling);
      plugin.http("api").get("/double", (ctx) => {
        ctx.body = { next: service.next() };
      });
    },
  });
  await using server = await startTestServer({ plugins: [[doubling], [counting]] });
  assert.deepEqual(await (await fetch(`${server.url}/double`)).json(), { next: 2 });
});

it("phases run in order, and stop undoes them in reverse", async () => {
  const trace: string[] = [];
  const traced = (name: string, requires: Record<string, symbol>, provides: readonly symbol[]) =>
    definePlugin({
      name,
      requires,
      provides,
      setup(plugin) {
        trace.push(`${name} setup`);
        for (const token of provides) plugin.bindValue(token, {});
        plugin.onStop(() => trace.push(`${name} undone`));
        plugin.onStart(() => {
          trace.push(`${name} started`);
          plugin.onStop(() => trace.push(`${name} stopped`));
        });
      },
    });
  const Lower = createToken("boot-test-lower");
  const server = await startTestServer({
    plugins: [[traced("upper", { Lower }, [])], [traced("lower", {}, [Lower])]],
  });
  trace.push("serving");
  await server.stop();
  assert.deepEqual(trace, [
    "lower setup",
    "upper setup",
    "lower started",
    "upper started",
    "serving",
    "upper stopped",
    "lower stopped",
    "upper undone",
    "lower undone",
  ]);
});

it("a plugin that cannot be set up or started takes the start back", async () => {
  for (const phase of ["setup", "start"] as const) {
    let undone = 0;
    const failing = definePlugin({
      name: "failing",
      setup(plugin) {
        plugin.onStop(() => {
          undone += 1;
        });
        const fail = (): void => {
          throw new Error("no disk");
        };
        if (phase === "setup") fail();
        plugin.onStart(fail);
      },
    });
    const error = await refusal([failing]);
    assert.match(error.message, /plugin 'failing' could not (be set up|start): no disk/);
    assert.equal(undone, 1);
  }
});

it("a token that a plugin declares as provided but does not bind is reported", async () => {
  const liar = definePlugin({ name: "liar", provides: [Counting], setup: () => undefined });
  assert.match(
    (await refusal([liar])).message,
    /plugin 'liar': provides 'boot-test-counting' but did not bind it/,
  );
});

it("all collisions are reported at once: routes, upgrade paths, metrics and prefixes", async () => {
  const claiming = (name: string) =>
    definePlugin({
      name,
      setup(plugin) {
        const router = plugin.http("api");
        router.get("/things/:id", () => undefined);
        router.post(`/only/${name}`, () => undefined);
        plugin.webSocket("api", ["/socket/:id"], greetingSocket);
        new Counter({ name: `coppice_${name}_ok`, help: "fine", registers: [plugin.metrics] });
        new Counter({ name: "somewhere_else", help: "not fine", registers: [plugin.metrics] });
        new Counter({
          name: "coppice_http_requests_total",
          help: "the server's",
          registers: [plugin.metrics],
        });
      },
    });
  const { problems } = await refusal([claiming("one"), claiming("two")]);
  assert.deepEqual(problems.map(({ message }) => message).toSorted(), [
    "'core' and plugin 'one' both have a metric coppice_http_requests_total",
    "'core' and plugin 'two' both have a metric coppice_http_requests_total",
    "'one' and plugin 'two' both have a metric somewhere_else",
    "plugin 'one' has a metric somewhere_else, which does not start with coppice_one_",
    "plugins 'one' and 'two' both serve GET /things/:id on surface 'api'",
    "plugins 'one' and 'two' both serve UPGRADE /socket/:id on surface 'api'",
  ]);
});

it("a plugin that provides the ledger takes the place of the SQLite file", async () => {
  const written: string[] = [];
  const remembering = definePlugin({
    name: "remembering",
    provides: [Ledger],
    setup(plugin) {
      plugin.bindValue(Ledger, {
        open: async () => undefined,
        entries: async () => [],
        write: async ({ state }) => void written.push(state),
        remove: async () => undefined,
        end: async ({ reason }) => void written.push(reason),
        findEnded: async () => undefined,
        snapshots: async () => [],
        writeSnapshot: async () => undefined,
        removeSnapshot: async () => undefined,
        confirm: async () => undefined,
        tell: async () => undefined,
        outbox: async () => [],
        clearOutbox: async () => undefined,
        trimOutbox: async () => 0,
        volumes: async () => [],
        writeVolume: async () => undefined,
        removeVolume: async () => undefined,
        leases: async () => [],
        leasedTo: async () => [],
        isLeased: async () => false,
        lease: async () => undefined,
        endLeases: async () => undefined,
        check: async () => undefined,
        close: async () => void written.push("closed"),
      });
    },
  });
  const server = await startTestServer({ plugins: [[memoryBackend()], [remembering]] });
  const { record } = await server.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: false });
  await server.sandboxes.kill(record.id);
  await server.stop();
  assert.deepEqual(written, ["creating", "running", "killing", "killed", "closed"]);
});

it("registering after setup is refused: nothing would serve it", async () => {
  let late: (() => unknown) | undefined;
  const tardy = definePlugin({
    name: "tardy",
    setup(plugin) {
      late = () => plugin.http("api");
    },
  });
  await using server = await startTestServer({ plugins: [[tardy]] });
  assert.ok(server.url);
  assert.throws(() => late?.(), /plugin 'tardy' calls http after its setup has ended/);
});

it("a route cannot be added to a router that was kept either", async () => {
  const thrown: string[] = [];
  const tardy = definePlugin({
    name: "tardy",
    setup(plugin) {
      const router = plugin.http("api");
      const rpc = plugin.rpc("api");
      plugin.onStart(() => {
        for (const late of [
          () => router.get("/late", () => undefined),
          () => rpc.rpc({} as never, {} as never),
        ]) {
          try {
            late();
          } catch (error) {
            thrown.push(messageOf(error));
          }
        }
      });
    },
  });
  await using server = await startTestServer({ plugins: [[tardy]] });
  assert.equal((await fetch(`${server.url}/late`)).status, 404);
  assert.deepEqual(
    thrown,
    Array.from({ length: 2 }, () => "plugin 'tardy' registers a route after its setup has ended"),
  );
});

it("a route that two plugins serve is refused in either order, a path that they share by its methods is served", async () => {
  const serving = (name: string, method: "get" | "post", path: string) =>
    definePlugin({
      name,
      setup(plugin) {
        plugin.http("api")[method](path, (context) => {
          context.body = name;
        });
      },
    });
  const messagesOf = async (plugins: readonly Plugin[]): Promise<readonly string[]> =>
    (await refusal(plugins)).problems.map(({ message }) => message);
  const anything = serving("anything", "get", "/:anything");
  const rest = serving("rest", "get", "/sandboxes/*rest");
  const list = serving("list", "get", "/sandboxes");
  const one = serving("one", "get", "/sandboxes/:id");
  const both = "both serve some requests on surface 'api'";
  assert.deepEqual(await messagesOf([anything, list]), [
    `plugins 'anything' and 'list' ${both}: GET /:anything and GET /sandboxes`,
  ]);
  assert.deepEqual(await messagesOf([list, anything]), [
    `plugins 'list' and 'anything' ${both}: GET /sandboxes and GET /:anything`,
  ]);
  assert.deepEqual(await messagesOf([rest, one]), [
    `plugins 'rest' and 'one' ${both}: GET /sandboxes/*rest and GET /sandboxes/:id`,
  ]);
  const apart = [anything, one, serving("make", "post", "/sandboxes"), serving("deep", "get", "/a/b/:c")];
  await using server = await startTestServer({ plugins: apart.map((plugin) => [plugin] as const) });
  const ask = (method: string, path: string): Promise<Response> => fetch(`${server.url}${path}`, { method });
  for (const [method, path, name] of [
    ["GET", "/sandboxes", "anything"],
    ["POST", "/sandboxes", "make"],
    ["GET", "/sandboxes/a", "one"],
    ["GET", "/a/b/c", "deep"],
  ] as const)
    assert.equal(await (await ask(method, path)).text(), name, `${method} ${path}`);
  assert.equal((await ask("PUT", "/sandboxes")).headers.get("allow"), "HEAD, GET, POST");
});

it("unreachable routes are refused: an unknown surface, a path without its slash", async () => {
  const lost = definePlugin({
    name: "lost",
    setup(plugin) {
      plugin.http("api2").get("/x", () => undefined);
      plugin.http("api").get("nolead", () => undefined);
      plugin.webSocket("api", ["socket"], greetingSocket);
    },
  });
  const messages = (await refusal([lost])).problems.map(({ message }) => message);
  assert.match(
    messages.join("\n"),
    /plugin 'lost' serves on surface 'api2', which no listener has; there are api, /,
  );
  assert.match(
    messages.join("\n"),
    /plugin 'lost' serves GET nolead on surface 'api': a path begins with \//,
  );
  assert.match(
    messages.join("\n"),
    /plugin 'lost' serves UPGRADE socket on surface 'api': a path begins with \//,
  );
});

it("two health checks of one name are refused, with the names of their plugins", async () => {
  const checking = (name: string) =>
    definePlugin({
      name,
      setup: (plugin) => plugin.health("disk", async () => undefined),
    });
  assert.match(
    (await refusal([checking("first"), checking("second")])).message,
    /plugin 'second' could not be set up: 'first' and 'second' both have a health check named 'disk'/,
  );
});

it("a step of the start that does not end is given up at its deadline, by name", async () => {
  const never = (): Promise<never> => new Promise(() => undefined);
  const withBackend = (change: object): Plugin => {
    const backend = Object.assign(new MemoryBackend(), change);
    return definePlugin({
      name: "slow",
      requires: { backends: Backends },
      setup: (_, { backends }) => backends.add(backend),
    });
  };
  const cases: readonly (readonly [Plugin, RegExp])[] = [
    [definePlugin({ name: "slow", setup: never }), /plugin 'slow' could not be set up: did not end within/],
    [
      definePlugin({ name: "slow", setup: (plugin) => plugin.onStart(never) }),
      /plugin 'slow' could not start: did not end within/,
    ],
    [withBackend({ check: never }), /backend 'memory': did not end within/],
    [withBackend({ recover: never }), /backend 'memory' could not take stock .* did not end within/],
  ];
  for (const [plugin, message] of cases) {
    await assert.rejects(
      startTestServer({ plugins: [[plugin]], server: { startTimeout: "50ms" } }),
      (error) => error instanceof BootError && message.test(error.message),
    );
  }
});

it("a backend's sandbox that is not the one asked for is refused and destroyed", async () => {
  const backend = new MemoryBackend();
  const provision = backend.provision.bind(backend);
  backend.provision = (spec, signal) => provision({ ...spec, id: `${spec.id}x` }, signal);
  const wrong = definePlugin({
    name: "wrong",
    requires: { backends: Backends },
    setup: (_, { backends }) => backends.add(backend),
  });
  await using server = await startTestServer({ plugins: [[wrong]] });
  await assert.rejects(
    server.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: false }),
    /backend 'memory' made sandbox '\w+x' for '\w+'/,
  );
  assert.equal(backend.alive.sandboxes, 0);
  assert.deepEqual(server.sandboxes.list(), []);
});

it("a mistake in a plugin's definition is reported with the plugin's name", () => {
  const define = definePlugin as (definition: object) => Plugin;
  const setup = (): undefined => undefined;
  assert.throws(
    () => define({ name: "acme", requires: { sandboxes: undefined }, setup }),
    /plugin 'acme': requires\.sandboxes is undefined, not a token/,
  );
  assert.throws(
    () => define({ name: "acme", config: { size: 1 }, setup }),
    /plugin 'acme': config is not a zod/,
  );
  assert.throws(() => define({ name: "acme", provides: ["x"], setup }), /plugin 'acme': provides has x/);
  assert.throws(() => define({ name: "acme" }), /plugin 'acme': setup is not a function/);
});

it("a clean-up that fails is reported by its plugin's name", async () => {
  const untidy = definePlugin({
    name: "untidy",
    setup(plugin) {
      plugin.onStop(() => {
        throw new Error("left a mess");
      });
    },
  });
  const server = await startTestServer({ plugins: [[untidy]] });
  await assert.rejects(server.stop(), /untidy: left a mess/);
});

it("off loopback an unguarded surface is refused unless the operator says so", async () => {
  const open = definePlugin({
    name: "open",
    setup(plugin) {
      plugin.http("api").get("/", () => undefined);
    },
  });
  const server = (listener: object) => ({
    plugins: [[open] as const],
    server: { listeners: { api: { host: "0.0.0.0", port: 0, ...listener } } },
  });
  await assert.rejects(
    startTestServer(server({})),
    /listener 'api' is on 0\.0\.0\.0.*surface 'api' has no authentication/,
  );
  await (await startTestServer(server({ insecure: true }))).stop();
});

it("a taken address is named, and listeners that were opened before are closed", async (context) => {
  await using first = await startTestServer();
  const port = Number(new URL(first.url).port);
  const dataDir = await mkdtemp(join(tmpdir(), "coppice-boot-"));
  context.after(() => rm(dataDir, { recursive: true }));
  const config = configFromValues({
    listeners: { ops: { port: 0 }, api: { port } },
    log: { level: "silent" },
    dataDir,
  });
  await assert.rejects(
    boot({ config }),
    new RegExp(`listener 'api' cannot bind 127\\.0\\.0\\.1:${port}.*EADDRINUSE`),
  );
});

it("readiness names the failing check and shows details of others; /healthz stays healthy", async () => {
  const ill = definePlugin({
    name: "ill",
    setup(plugin) {
      plugin.health("disk", async () => {
        throw new Error("disk is full");
      });
      plugin.health("limits", async () => ({ memory: "enforced" }));
      plugin.health("quiet", async () => undefined);
    },
  });
  await using server = await startTestServer({ plugins: [[ill]] });
  const ready = await fetch(`${server.urls["ops"]}/readyz`);
  assert.equal(ready.status, 503);
  assert.deepEqual(await ready.json(), {
    ready: false,
    checks: { ledger: "ok", disk: "disk is full", limits: "ok", quiet: "ok" },
    details: { limits: { memory: "enforced" } },
  });
  assert.equal((await fetch(`${server.urls["ops"]}/healthz`)).status, 200);
});

it("a plugin has a data directory of its own, closed to other users", async () => {
  let kept: string | undefined;
  const keeper = definePlugin({
    name: "log-keeper",
    setup(plugin) {
      plugin.onStart(() => {
        kept = plugin.dataDir();
        assert.equal(plugin.dataDir(), kept, "asking twice makes no second one");
      });
    },
  });
  const dataDir = await mkdtemp(join(tmpdir(), "coppice-boot-"));
  try {
    await using server = await startTestServer({ plugins: [[keeper]], dataDir });
    assert.ok(server.url);
    assert.equal(kept, join(dataDir, "log-keeper"));
    assert.equal((await stat(kept)).mode & 0o777, 0o700);
  } finally {
    await rm(dataDir, { recursive: true });
  }
});

it("a server that lets its last requests end makes no sandbox for them any more", async () => {
  const answered = Promise.withResolvers<void>();
  const entered = Promise.withResolvers<void>();
  const slow = definePlugin({
    name: "slow",
    setup(plugin) {
      plugin.http("api").get("/slow", async (ctx) => {
        entered.resolve();
        await answered.promise;
        ctx.body = "done";
      });
    },
  });
  const server = await startTestServer({
    plugins: [[memoryBackend()], [slow]],
    server: { http: { drainTimeout: "5s" }, sandboxes: { templates: { base: {} } } },
  });
  const asked = fetch(`${server.url}/slow`);
  await entered.promise;
  const stopped = server.stop();
  const creation = server.sandboxes.create({ template: "base", timeoutMs: 1000, secure: false });
  await assert.rejects(creation, { reason: "server_stopping" });
  answered.resolve();
  assert.equal(await (await asked).text(), "done");
  await stopped;
});
