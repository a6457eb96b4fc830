import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { it, type TestContext } from "node:test";
import { Registry } from "prom-client";
import type { z } from "zod";
import { SandboxError } from "../../kernel/errors.js";
import { createLogger } from "../../observe/logger.js";
import { fakeClock } from "../../testing/fake-clock.js";
import { MemoryBackend } from "../../testing/memory-backend.js";
import type { ImageSource } from "../contract/backend.js";
import { createSandboxDomain, type SandboxDomain } from "../domain.js";
import type { CreateSandbox } from "../life/sandboxes.js";
import { sandboxesConfig } from "../model/sandboxes-config.js";
import { DEFAULT_TENANT } from "../model/tenant-records.js";
import { plainRecord } from "../testing/start-domain.js";
import type { WarmUp } from "./warm-ups.js";

const MINUTE_MS = 60_000;
const base: CreateSandbox = { template: "base", timeoutMs: 5 * MINUTE_MS, secure: true };

type Pool = NonNullable<NonNullable<z.input<typeof sandboxesConfig>["templates"]>[string]["pool"]>;

interface Fixture extends SandboxDomain {
  readonly settings: z.infer<typeof sandboxesConfig>;
  readonly backend: MemoryBackend;
  readonly clock: ReturnType<typeof fakeClock>;
  readonly dataDir: string;
  /** Lets everything run that waits for nothing but its turn or the ledger. */
  settle(): Promise<void>;
  metric(name: string, labels?: Readonly<Record<string, string>>): Promise<number>;
}

interface Setting {
  readonly pool: Pool;
  readonly warmUp?: Partial<WarmUp>;
  readonly more?: z.input<typeof sandboxesConfig>;
  /** The lines of the log are appended to this array. */
  readonly logged?: string[];
  /** The backend of an earlier server. */
  readonly backend?: MemoryBackend;
  readonly dataDir?: string;
}

async function startDomain(context: TestContext, setting: Setting): Promise<Fixture> {
  const dataDir = setting.dataDir ?? mkdtempSync(join(tmpdir(), "coppice-warm-"));
  const clock = fakeClock();
  const metrics = new Registry();
  const backend = setting.backend ?? new MemoryBackend({});
  const settings = sandboxesConfig.parse({
    maximumLimits: { memoryMiB: 128 },
    templates: { base: { pool: setting.pool, limits: { memoryMiB: 64 } }, other: {} },
    ...setting.more,
  });
  const domain = createSandboxDomain({
    config: settings,
    dataDir,
    clock,
    log: createLogger("warn", { write: (line) => void setting.logged?.push(line) }),
    metrics,
  });
  context.after(async () => {
    const stopped = domain.stop();
    await clock.advance(10 * MINUTE_MS);
    await stopped;
    rmSync(dataDir, { recursive: true, force: true });
    assert.deepEqual(backend.alive, { sandboxes: 0, processes: 0, connections: 0, openFiles: 0 });
    assert.equal(clock.pending, 0, "a timer is still armed");
  });
  domain.backends.add(backend);
  const nothing = async (): Promise<void> => {};
  domain.warmUps.add({ prepare: nothing, handOut: nothing, ...setting.warmUp });
  await domain.start();
  domain.fillPools();
  const settle = async (): Promise<void> => {
    for (let turn = 0; turn < 50; turn += 1) await clock.advance(0);
  };
  await settle();
  return {
    ...domain,
    settings,
    backend,
    clock,
    dataDir,
    settle,
    async metric(name, labels = {}) {
      const values = (await metrics.getSingleMetric(`coppice_sandboxes_${name}`)?.get())?.values ?? [];
      return values
        .filter(({ labels: all }) => Object.entries(labels).every(([label, value]) => all[label] === value))
        .reduce((total, { value }) => total + value, 0);
    },
  };
}

it("a sandbox of the pool has no owner until it is handed out with its creator's options", async (context) => {
  const prepared: string[] = [];
  const handedOut: unknown[] = [];
  const domain = await startDomain(context, {
    pool: { min: 2 },
    warmUp: {
      prepare: async (sandbox) => {
        assert.equal(sandbox.runtime.id, sandbox.record.id);
        prepared.push(sandbox.record.id);
      },
      handOut: async ({ record }) => void handedOut.push([record.id, record.environment]),
    },
  });
  const { sandboxes, backend, ledger, clock } = domain;
  assert.equal(backend.alive.sandboxes, 2);
  assert.deepEqual(sandboxes.list(), []);
  assert.equal(sandboxes.find(prepared[0] ?? ""), undefined);
  await assert.rejects(sandboxes.kill(prepared[0] ?? ""), /not found/);
  assert.equal(await domain.metric("running"), 0);
  assert.equal(await domain.metric("warm", { template: "base" }), 2);
  assert.deepEqual(
    (await ledger.entries()).map(({ record }) => record.state),
    ["creating", "creating"],
  );

  await clock.advance(MINUTE_MS);
  const sandbox = await sandboxes.create({ ...base, environment: { A: "1" }, metadata: { b: "2" } });
  const { record } = sandbox;
  assert.equal(record.id, prepared[0], "the oldest is taken");
  assert.deepEqual(handedOut, [[record.id, { A: "1" }]]);
  assert.match(record.accessToken ?? "", /^[\w-]{43}$/);
  assert.deepEqual(record, {
    ...plainRecord(record, clock.now()),
    metadata: { b: "2" },
    environment: { A: "1" },
    limits: { memoryMiB: 64 },
  });
  assert.equal(sandboxes.get(record.id), sandbox);
  await domain.settle();
  assert.equal(prepared.length, 3, "the pool is filled up again");
  assert.equal(await domain.metric("warm_takes_total", { outcome: "hit" }), 1);
  assert.equal(await domain.metric("created_total"), 1);

  await clock.advance(5 * MINUTE_MS);
  await domain.settle();
  assert.equal((await ledger.findEnded(record.id))?.reason, "timed out");
  assert.equal(backend.alive.sandboxes, 2);
});

it("a request that does not match the pool gets a new sandbox", async (context) => {
  const domain = await startDomain(context, { pool: { min: 1 }, more: { maximum: 6 } });
  const [warm] = (await domain.ledger.entries()).map(({ record }) => record.id);
  const others: readonly Partial<CreateSandbox>[] = [
    { template: "other" },
    { id: "debug" },
    { allowInternetAccess: false },
    { egress: { allowOut: [], denyOut: ["1.1.1.1"] } },
    { limits: { memoryMiB: 65 } },
  ];
  for (const other of others) {
    const { record } = await domain.sandboxes.create({ ...base, ...other });
    assert.notEqual(record.id, warm, JSON.stringify(other));
  }
  assert.equal(await domain.metric("warm_takes_total"), 0);
  const { record } = await domain.sandboxes.create({ ...base, limits: { memoryMiB: 64 } });
  assert.equal(record.id, warm);
  await assert.rejects(
    domain.sandboxes.create(base),
    /maximum number/,
    "the pool is no way around the limit",
  );
});

it("a sandbox of the pool that was made from an earlier build is not handed out", async (context) => {
  const backend = new MemoryBackend({ images: {} });
  await backend.images?.unpack(
    "image",
    { layers: [] } as unknown as ImageSource,
    new AbortController().signal,
  );
  const domain = await startDomain(context, { pool: { min: 1 }, backend });
  const [warm] = (await domain.ledger.entries()).map(({ record }) => record.id);
  const build = { id: "later", image: { id: "image", user: "user" }, limits: {} };
  domain.templates.add({
    all: () => [],
    find: () => undefined,
    builds: (name) => name === "base",
    buildOf: (name) => (name === "base" ? build : undefined),
  });
  const { record } = await domain.sandboxes.create(base);
  assert.notEqual(record.id, warm);
  assert.equal(record.build?.id, "later");
  await domain.settle();
  assert.equal(domain.backend.sandboxes.has(warm ?? ""), false);
});

it("a sandbox of the pool that was made with earlier limits is not handed out", async (context) => {
  const domain = await startDomain(context, { pool: { min: 1 } });
  const [warm] = (await domain.ledger.entries()).map(({ record }) => record.id);
  const template = domain.settings.templates["base"];
  assert.ok(template);
  // As a reload does.
  template.limits = { memoryMiB: 32 };
  const { record } = await domain.sandboxes.create(base);
  assert.notEqual(record.id, warm);
  assert.equal(record.limits.memoryMiB, 32);
  await domain.settle();
  assert.equal(domain.backend.sandboxes.has(warm ?? ""), false);
  assert.equal(
    (await domain.sandboxes.create(base)).record.limits.memoryMiB,
    32,
    "the pool has such ones now",
  );
  assert.equal(await domain.metric("warm_takes_total"), 1);
});

it("a sandbox with volumes has them also where its template has a pool", async (context) => {
  const backend = new MemoryBackend({ volumes: {} });
  const domain = await startDomain(context, { pool: { min: 1 }, backend });
  await domain.volumes.of(DEFAULT_TENANT).create({ name: "data" });
  const mounts = [{ volume: "data", path: "/data" }];
  const { record, runtime } = await domain.sandboxes.create({ ...base, mounts });
  assert.deepEqual(
    record.mounts.map(({ path }) => path),
    ["/data"],
  );
  assert.equal((await runtime.files.stat("/data")).path, "/data");
});

it("a pool that cannot be filled logs one line for each reason, without a stack", async (context) => {
  let reason: string | undefined = "there is no kernel";
  const logged: string[] = [];
  const domain = await startDomain(context, {
    pool: { min: 1 },
    logged,
    warmUp: {
      prepare: async () => {
        if (reason !== undefined) throw new SandboxError("template_unusable", reason);
      },
    },
  });
  const goOn = async (): Promise<void> => {
    await domain.clock.advance(MINUTE_MS);
    await domain.settle();
  };
  const told = () =>
    logged.map((line) => {
      const { template, err, msg } = JSON.parse(line) as Record<string, unknown>;
      return { template, err, msg };
    });
  const line = (message: string) => ({
    template: "base",
    err: { type: "SandboxError", code: "failed_precondition", reason: "template_unusable", message },
    msg: "a sandbox for the warm pool could not be made ready; it is tried again",
  });
  await goOn();
  await goOn();
  assert.ok((await domain.metric("warm_failures_total")) > 1);
  assert.deepEqual(told(), [line("there is no kernel")]);
  reason = "there is no memory";
  await goOn();
  assert.deepEqual(told(), [line("there is no kernel"), line("there is no memory")]);
  reason = undefined;
  await goOn();
  assert.equal(await domain.metric("warm"), 1);
  assert.equal(logged.length, 2);
});

it("a warm-up that fails is undone and retried later; creations do not wait for it", async (context) => {
  let isBroken = true;
  const domain = await startDomain(context, {
    pool: { min: 1 },
    warmUp: {
      prepare: async () => {
        if (isBroken) throw new Error("no kernel");
      },
    },
  });
  assert.equal(domain.backend.alive.sandboxes, 0);
  assert.equal(await domain.metric("warm_failures_total"), 1);
  await domain.sandboxes.create(base);
  assert.equal(await domain.metric("warm_takes_total", { outcome: "miss" }), 1);
  isBroken = false;
  await domain.clock.advance(1000);
  await domain.settle();
  assert.equal(await domain.metric("warm"), 1);
});

it("a sandbox that fails at its hand-out is replaced by a new one", async (context) => {
  const broken: string[] = [];
  const domain = await startDomain(context, {
    pool: { min: 1 },
    warmUp: {
      handOut: async ({ record }) => {
        broken.push(record.id);
        throw new Error("the kernel died meanwhile");
      },
    },
  });
  const { record } = await domain.sandboxes.create(base);
  await domain.settle();
  assert.notEqual(record.id, broken[0]);
  assert.deepEqual(
    domain.sandboxes.list().map(({ record: { id } }) => id),
    [record.id],
  );
  assert.equal(await domain.metric("warm_takes_total", { outcome: "broken" }), 1);
  assert.equal(await domain.metric("create_failures_total"), 0);
  assert.equal(await domain.ledger.findEnded(broken[0] ?? ""), undefined);
  assert.equal(domain.backend.alive.sandboxes, 2, "the new one, and the pool's next");
});

it("a creator that leaves during the hand-out leaves nothing behind", async (context) => {
  const domain = await startDomain(context, {
    pool: { min: 1 },
    warmUp: {
      handOut: (_sandbox, signal) =>
        new Promise((_resolve, reject) => {
          signal.addEventListener("abort", () => reject(new Error("given up")));
        }),
    },
  });
  const client = new AbortController();
  const creating = domain.sandboxes.create(base, client.signal);
  const failed = assert.rejects(creating, { code: "canceled" });
  await domain.settle();
  client.abort();
  await failed;
  await domain.settle();
  assert.deepEqual(domain.sandboxes.list(), []);
  assert.equal(domain.backend.alive.sandboxes, 1, "the pool's next");
});

it("a pool grows with each miss, up to its maximum, and shrinks again", async (context) => {
  const domain = await startDomain(context, { pool: { min: 0, max: 8, refill: 2, shrinkAfter: "10m" } });
  assert.equal(domain.backend.alive.sandboxes, 0);
  for (let burst = 0; burst < 3; burst += 1) {
    const made = Array.from({ length: 9 }, () => domain.sandboxes.create(base));
    for (const sandbox of await Promise.all(made)) await domain.sandboxes.kill(sandbox.record.id);
    await domain.settle();
  }
  for (const expected of [8, 6, 4, 3, 2, 1]) {
    assert.equal(await domain.metric("warm"), expected);
    await domain.clock.advance(10 * MINUTE_MS);
    await domain.settle();
  }
  assert.equal(domain.backend.alive.sandboxes, 0);
});

it("a stop ends waiting and unfinished sandboxes of a pool, also where sandboxes are kept", async (context) => {
  let isStuck = false;
  const domain = await startDomain(context, {
    pool: { min: 2 },
    more: { onShutdown: "keep" },
    warmUp: {
      prepare: (_sandbox, signal) =>
        new Promise((resolve, reject) => {
          if (!isStuck) resolve();
          isStuck = true;
          signal.addEventListener("abort", () => reject(new Error("given up")));
        }),
    },
  });
  assert.equal(domain.backend.alive.sandboxes, 2);
  await domain.stop();
  assert.equal(domain.backend.alive.sandboxes, 0);
});

it("a stop waits until unfinished sandboxes of a pool are destroyed", async (context) => {
  const gate = Promise.withResolvers<void>();
  const backend = new MemoryBackend({
    // Ignores the abort signal, as a backend does in the middle of a mount.
    onProvision: (step) => (step === "start" ? gate.promise : undefined),
  });
  const domain = await startDomain(context, { pool: { min: 1 }, backend, more: { onShutdown: "keep" } });
  let isStopped = false;
  const stopped = domain.stop().then(() => (isStopped = true));
  await domain.settle();
  assert.equal(isStopped, false, "the stop is over while a sandbox is still being made");
  gate.resolve();
  await stopped;
  assert.equal(backend.alive.sandboxes, 0);
});

it("the next server destroys the pool of a crashed one", async (context) => {
  const first = await startDomain(context, { pool: { min: 2 } });
  const before = (await first.ledger.entries()).map(({ record }) => record.id);
  assert.equal(before.length, 2);
  await first.ledger.close();
  const second = await startDomain(context, {
    pool: { min: 1 },
    backend: first.backend,
    dataDir: first.dataDir,
  });
  const after = (await second.ledger.entries()).map(({ record }) => record.id);
  assert.equal(after.length, 1);
  assert.ok(!before.includes(after[0] ?? ""));
  assert.equal(second.backend.alive.sandboxes, 1);
  await second.stop();
});

it("a pool makes as many at once as are asked for meanwhile, and one while any creator waits", async (context) => {
  const processors = availableParallelism();
  let preparing = 0;
  const counts: number[] = [];
  const prepared: (() => void)[] = [];
  const prepare = async (): Promise<void> => {
    counts.push(++preparing);
    await new Promise<void>((resolve) => prepared.push(resolve));
    preparing -= 1;
  };
  let gate: Promise<void> | undefined;
  const onProvision = (step: string): Promise<void> | undefined => {
    const mine = gate;
    if (step === "start") gate = undefined;
    return step === "start" ? mine : undefined;
  };
  const backend = new MemoryBackend({ onProvision });
  const domain = await startDomain(context, { pool: { min: 4 }, backend, warmUp: { prepare } });
  const goOn = async (): Promise<void> => {
    await domain.clock.advance(1000);
    for (const finish of prepared.splice(0)) finish();
    await domain.settle();
  };
  for (let second = 0; second < 4; second += 1) await goOn();
  assert.deepEqual(counts, [1, 1, 1, 1], "nobody asks");
  counts.length = 0;
  for (let asked = 0; asked < 4; asked += 1) await domain.sandboxes.create(base);
  await domain.settle();
  assert.equal(Math.max(...counts), Math.min(processors, 4));
  for (let second = 0; second < 4; second += 1) await goOn();
  counts.length = 0;
  const { promise, resolve } = Promise.withResolvers<void>();
  gate = promise;
  const waiting = domain.sandboxes.create({ ...base, template: "other" });
  await domain.settle();
  for (let asked = 0; asked < 4; asked += 1) await domain.sandboxes.create(base);
  await domain.settle();
  assert.deepEqual(counts, [1], "a creator waits, of another template");
  resolve();
  await waiting;
  for (let second = 0; second < 4; second += 1) await goOn();
});

it("a pool whose maximum is below its minimum is refused", () => {
  const parsed = sandboxesConfig.safeParse({ templates: { base: { pool: { min: 2, max: 1 } } } });
  assert.match(parsed.error?.message ?? "", /less than min/);
});

it("a sandbox of the pool is ready before it is offered, and its creator's own probe is waited for", async (context) => {
  let isUp = false;
  const asked: string[] = [];
  const program = (name: string) => async () => {
    asked.push(name);
    return isUp ? 0 : 1;
  };
  const backend = new MemoryBackend({ programs: { template: program("template"), own: program("own") } });
  const probe = { type: "shell" as const, command: ["template"], timeout: "1h", interval: "1s" };
  const domain = await startDomain(context, {
    pool: { min: 1 },
    backend,
    more: {
      readiness: { maximumTimeout: "1h" },
      templates: { base: { pool: { min: 1 }, readinessProbe: probe }, other: {} },
    },
  });
  const { sandboxes, clock } = domain;
  // Longer than the limit of a warm-up: the readiness probe has its own limit.
  for (let second = 0; second < 90; second += 1) {
    await clock.advance(1000);
    await domain.settle();
  }
  assert.equal(backend.alive.sandboxes, 1);
  assert.equal(await domain.metric("warm"), 0);
  isUp = true;
  await clock.advance(1000);
  await domain.settle();
  assert.equal(await domain.metric("warm"), 1);

  asked.length = 0;
  await sandboxes.create(base);
  await domain.settle();
  assert.ok(!asked.includes("own"));
  assert.equal(await domain.metric("warm_takes_total", { outcome: "hit" }), 1);
  isUp = false;
  const own = { ...base, readinessProbe: { type: "shell", command: ["own"], timeoutMs: 2000 } as const };
  const refused = assert.rejects(sandboxes.create(own), /not ready within 2000 ms: .* exit code 1$/);
  for (let second = 0; second < 3; second += 1) {
    await domain.settle();
    await clock.advance(1000);
  }
  await refused;
  assert.equal(await domain.metric("create_failures_total"), 1, "a second one is not waited for");
});

it("a sandbox of the pool that ends by itself is not offered, and another one takes its place", async (context) => {
  const domain = await startDomain(context, { pool: { min: 1 } });
  const { sandboxes, backend, clock, ledger } = domain;
  const [first] = [...backend.sandboxes.values()];
  assert.ok(first);
  first.lose("backend lost");
  await domain.settle();
  assert.equal(await domain.metric("warm"), 0);
  assert.deepEqual(await ledger.entries(), []);
  await clock.advance(1000);
  await domain.settle();
  assert.equal(await domain.metric("warm"), 1);
  assert.equal(await domain.metric("warm_failures_total"), 1);
  assert.equal(await domain.metric("ended_total"), 0, "nobody knew of it");
  assert.notEqual((await sandboxes.create(base)).record.id, first.id);
});
