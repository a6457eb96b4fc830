import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { definePlugin, SCOPES } from "@coppice/core";
import { fakeClock, memoryBackend, startTestServer, type TestServer } from "@coppice/core/testing";
import commands from "@coppice/plugin-commands";
import localProcess from "@coppice/plugin-local-process";
import { CommandsV1Store } from "../store/commands-v1-store.js";
import commandsV1 from "../index.js";

const HOUR_MS = 3_600_000;

interface Answer {
  readonly id: string;
  readonly name: string;
  readonly state: string;
  readonly tier: string;
  readonly created_at: string;
  readonly auto_stop_minutes: number;
  readonly disk_gb: number;
  readonly deadline?: string;
  readonly workdir?: string;
  readonly code: string;
  readonly command_id: string;
  readonly phase: string;
  readonly bytes: string;
}

/** A header names the caller. */
const tenants = definePlugin({
  name: "tenants",
  setup(plugin) {
    plugin.guard("api", ({ headers }) => ({
      tenant: String(headers["x-tenant"] ?? "default"),
      name: "key",
      scopes: new Set(SCOPES),
    }));
  },
});

describe("/v1 sandboxes", { timeout: 120_000 }, () => {
  const clock = fakeClock();
  let server: TestServer;
  let dataDir: string;
  const start = () =>
    startTestServer({
      clock,
      dataDir,
      server: {
        sandboxes: { onShutdown: "keep", maximumLimits: { cpuCount: 8, memoryMiB: 8192, diskMiB: 10_240 } },
      },
      plugins: [
        [commands, {}],
        [commandsV1, { autoDelete: "48h", checkInterval: "10s" }],
        [localProcess, {}],
        [tenants, {}],
      ],
    });

  before(async () => {
    dataDir = await mkdtemp(join(tmpdir(), "coppice-v1-sandboxes-"));
    server = await start();
  });
  after(async () => {
    for (const { record } of server.sandboxes.list()) await server.sandboxes.kill(record.id);
    await server.stop();
    await rm(dataDir, { recursive: true });
  });

  const ask = async (method: string, path: string, body?: unknown, headers: Record<string, string> = {}) => {
    const response = await fetch(`${server.url}/v1/sandboxes${path}`, {
      method,
      headers,
      ...(body !== undefined && { body: typeof body === "string" ? body : JSON.stringify(body) }),
    });
    const text = await response.text();
    return { status: response.status, body: (text === "" ? {} : JSON.parse(text)) as Answer };
  };
  const create = async (body: object = {}, headers?: Record<string, string>): Promise<Answer> => {
    const { status, body: made } = await ask("POST", "", { image: "base", ...body }, headers);
    assert.equal(status, 201, JSON.stringify(made));
    return made;
  };
  /** Runs a command to its end, and returns its output. */
  const run = async (sandbox: string, ...argv: readonly string[]): Promise<string> => {
    const { status, body } = await ask("POST", `/${sandbox}/commands`, { argv });
    assert.equal(status, 201, JSON.stringify(body));
    for (;;) {
      const { body: page } = await ask("GET", `/${sandbox}/commands/${body.command_id}/logs?cursor=0`);
      if (page.phase !== "running") return page.bytes;
      await delay(20);
    }
  };
  const unique = () => `box-${randomBytes(5).toString("hex")}`;

  it("take no name that is the id of another sandbox, and can always be changed", async () => {
    const other = await server.sandboxes.create({ template: "base", timeoutMs: 300_000, secure: false });
    const { id } = other.record;
    const made = await create();
    for (const [method, path, body] of [
      ["POST", "", { image: "base", name: id }],
      ["PATCH", `/${made.id}`, { name: id }],
    ] as const) {
      const { status, body: refusal } = await ask(method, path, body);
      assert.deepEqual([status, refusal.code], [409, "sandbox_name_taken"]);
    }
    const { status, body } = await ask("PATCH", `/${id}`, { auto_stop_minutes: 5, name: unique() });
    assert.deepEqual([status, body.auto_stop_minutes], [200, 5]);
    assert.equal((await ask("PATCH", `/${id}`, { name: id })).body.name, id);
  });

  it("are created with the contract's fields, and found by id and by name", async () => {
    const name = unique();
    const wanted = {
      name,
      tier: "persistent",
      env: { A: "b" },
      cpu: "1500m",
      memory: "1Gi",
      disk_gb: 2,
      ttl: "90m",
    };
    const made = await create({ ...wanted, auto_stop_minutes: 5 });
    const { id, created_at: createdAt, ...rest } = made;
    const deadline = new Date(Date.parse(createdAt) + 1.5 * HOUR_MS).toISOString();
    assert.deepEqual(rest, {
      name,
      state: "running",
      tier: "persistent",
      image: "base",
      last_activity_at: createdAt,
      auto_stop_minutes: 5,
      disk_gb: 2,
      cpu_milli: 1500,
      memory_mb: 1024,
      deadline,
      workdir: "/workspace",
    });
    for (const path of [`/${id}`, `/${name}`]) assert.deepEqual((await ask("GET", path)).body, made);
    const { body: listed } = await ask("GET", `?name=${name}`);
    assert.deepEqual(listed, [made]);
    assert.deepEqual((await ask("GET", "?name=none")).body, []);
    assert.match(await run(name, "/bin/sh", "-c", "pwd; echo $A"), /\/workspace\nb\n$/);
    assert.equal((await ask("DELETE", `/${name}`)).status, 204);
    assert.equal((await ask("GET", `/${name}`)).status, 404);
    // Its name is free, and logs of its commands are found by its id.
    const again = await create({ name });
    assert.notEqual(again.id, id);
    assert.equal((await ask("GET", `/${id}/commands`)).status, 200);
  });

  it("have names that are their owner's, and that change", async () => {
    const [name, other] = [unique(), unique()];
    const mine = await create({ name });
    const theirs = await create({ name }, { "x-tenant": "acme" });
    assert.notEqual(mine.id, theirs.id);
    assert.equal((await ask("GET", `/${name}`, undefined, { "x-tenant": "acme" })).body.id, theirs.id);
    assert.equal((await ask("GET", `/${theirs.id}`)).status, 404);
    const taken = await ask("POST", "", { image: "base", name });
    assert.deepEqual([taken.status, taken.body.code], [409, "sandbox_name_taken"]);
    const racing = await Promise.all([1, 2, 3].map(() => ask("POST", "", { image: "base", name: other })));
    assert.deepEqual(
      racing.map(({ status }) => status).toSorted((a, b) => a - b),
      [201, 409, 409],
    );
    assert.equal((await ask("PATCH", `/${name}`, { name: other })).status, 409);
    const renamed = await ask("PATCH", `/${name}`, { name: unique(), auto_stop_minutes: 0 });
    assert.deepEqual([renamed.status, renamed.body.auto_stop_minutes], [200, 0]);
    assert.equal((await ask("GET", `/${name}`)).status, 404);
    assert.equal((await ask("GET", `/${renamed.body.name}`)).body.id, mine.id);
    assert.equal((await ask("PATCH", `/${theirs.id}`, { name: "x" })).status, 404);
  });

  it("of several owners get one name at the same moment, and one of each owner", async () => {
    for (let round = 0; round < 3; round += 1) {
      const body = { image: "base", name: unique() };
      const owners = ["one", "other", "one", "third", "other"];
      const answers = await Promise.all(owners.map((owner) => ask("POST", "", body, { "x-tenant": owner })));
      for (const owner of new Set(owners)) {
        const own = answers.filter((_, index) => owners[index] === owner).map(({ status }) => status);
        assert.deepEqual(
          own.toSorted((a, b) => a - b),
          own.length === 1 ? [201] : [201, 409],
          owner,
        );
      }
    }
  });

  it("stop and start with their files when persistent, and are deleted by a stop when ephemeral", async () => {
    const kept = await create({ tier: "persistent" });
    const id = kept.id;
    await run(id, "/bin/sh", "-c", "echo saved > file");
    for (let time = 0; time < 2; time++) {
      const stopped = await ask("POST", `/${id}/stop`, "null");
      assert.deepEqual([stopped.status, stopped.body.state], [200, "stopped"]);
    }
    assert.equal((await ask("POST", `/${id}/commands`, { argv: ["true"] })).status, 409);
    for (let time = 0; time < 2; time++) {
      const started = await ask("POST", `/${id}/start`);
      assert.deepEqual([started.status, started.body.state], [200, "running"]);
      assert.equal(started.body.deadline, kept.deadline);
    }
    assert.equal(await run(id, "cat", "file"), "saved\n");
    const gone = await create();
    assert.equal((await ask("POST", `/${gone.id}/stop`, {})).status, 204);
    assert.equal((await ask("GET", `/${gone.id}`)).status, 404);
  });

  it("stop when they are idle, not while a command runs, and are deleted at their deadline", async () => {
    const [idle, busy, brief] = await Promise.all([
      create({ tier: "persistent", auto_stop_minutes: 10 }),
      create({ tier: "persistent", auto_stop_minutes: 10 }),
      create({ auto_stop_minutes: 0, auto_delete_hours: 1 }),
    ]);
    const { body: working } = await ask("POST", `/${busy.id}/commands`, { argv: ["sleep", "60"] });
    const stateOf = async ({ id }: Answer) => (await ask("GET", `/${id}`)).body.state;
    const advance = async (ms: number) => {
      await clock.advance(ms);
      // The look at all sandboxes, and what follows from it.
      await delay(300);
      await clock.advance(10_000);
      await delay(300);
    };
    await advance(9 * 60_000);
    assert.deepEqual(await Promise.all([idle, busy, brief].map(stateOf)), ["running", "running", "running"]);
    await advance(60_000);
    assert.deepEqual(await Promise.all([idle, busy, brief].map(stateOf)), ["stopped", "running", "running"]);
    await ask("DELETE", `/${busy.id}/commands/${working.command_id}`);
    await advance(11 * 60_000);
    assert.equal(await stateOf(busy), "stopped");
    const extended = await ask("POST", `/${brief.id}/extend`, { auto_delete_hours: 2 });
    assert.equal(Date.parse(extended.body.deadline ?? ""), clock.now() + 2 * HOUR_MS);
    await advance(HOUR_MS);
    assert.equal(await stateOf(brief), "running");
    const deadline = new Date(clock.now() + 60_000).toISOString();
    assert.equal((await ask("POST", `/${brief.id}/extend`, { deadline })).body.deadline, deadline);
    await advance(60_000);
    assert.equal((await ask("GET", `/${brief.id}`)).status, 404);
  });

  it("are created once for an Idempotency-Key", async () => {
    const key = { "idempotency-key": randomBytes(8).toString("hex") };
    const body = { image: "base", name: unique() };
    const made = await Promise.all(Array.from({ length: 5 }, () => ask("POST", "", body, key)));
    assert.deepEqual(new Set(made.map(({ status }) => status)), new Set([201]));
    assert.equal(new Set(made.map(({ body: { id } }) => id)).size, 1);
    assert.equal(made[0]?.body.name, body.name);
    const other = await ask("POST", "", { ...body, name: unique() }, key);
    assert.deepEqual([other.status, other.body.code], [409, "idempotency_key_reused"]);
  });

  it("get their name when the server was killed before it was stored, and the request is repeated", async () => {
    const key = { "idempotency-key": randomBytes(8).toString("hex") };
    const body = { image: "base", name: unique(), auto_stop_minutes: 7 };
    const { id } = await create(body, key);
    const store = new CommandsV1Store(join(dataDir, "commands-v1"));
    store.sandboxes.remove({ id });
    store.close();
    const { body: again } = await ask("POST", "", body, key);
    assert.deepEqual(
      [again.id, again.name, again.auto_stop_minutes, again.workdir],
      [id, body.name, 7, "/workspace"],
    );
  });

  it("include those of other interfaces, which keep their own end", async () => {
    const { record } = await server.sandboxes.create({ template: "base", timeoutMs: HOUR_MS, secure: false });
    const { body } = await ask("GET", `/${record.id}`);
    assert.deepEqual(
      [body.name, body.tier, body.auto_stop_minutes, body.workdir, Date.parse(body.deadline ?? "")],
      [record.id, "ephemeral", 0, undefined, record.endsAtMs],
    );
    const extended = await ask("POST", `/${record.id}/extend`, { auto_delete_hours: 3 });
    assert.equal(Date.parse(extended.body.deadline ?? ""), clock.now() + 3 * HOUR_MS);
    const name = unique();
    assert.equal((await ask("PATCH", `/${record.id}`, { name })).body.name, name);
    assert.equal((await ask("GET", `/${name}`)).body.id, record.id);
  });

  it("refuse bad input, and create nothing", async () => {
    const count = () => server.sandboxes.list().length;
    const before = count();
    const { id } = await create();
    for (const body of [
      "",
      "{",
      "null",
      {},
      { image: 5 },
      { image: "" },
      { image: "base", name: "UPPER" },
      { image: "base", name: "-a" },
      { image: "base", tier: "gold" },
      { image: "base", cpu: "lots" },
      { image: "base", cpu: "1m" },
      { image: "base", memory: "1Zi" },
      { image: "base", memory: "1Ki" },
      { image: "base", disk_gb: 0 },
      { image: "base", disk_gb: 1000 },
      { image: "base", auto_stop_minutes: -1 },
      { image: "base", auto_delete_hours: 1e9 },
      { image: "base", ttl: "soon" },
      { image: "base", env: { "A=": "b" } },
    ]) {
      const { status, body: answer } = await ask("POST", "", body);
      assert.equal(status, 400, JSON.stringify([body, answer]));
      assert.match(answer.code, /^[a-z_]+$/);
    }
    assert.equal((await ask("POST", "", { image: "none" })).status, 404);
    for (const [method, path, body, expected] of [
      ["PATCH", "", { name: "a/b" }, 400],
      ["PATCH", "", "[]", 400],
      ["POST", "/extend", {}, 400],
      ["POST", "/extend", { auto_delete_hours: -1 }, 400],
      ["POST", "/extend", { deadline: "2001-01-01T00:00:00Z" }, 400],
      ["POST", "/extend", { deadline: "9001-01-01T00:00:00Z" }, 400],
      ["POST", "/stop", "7", 400],
      ["POST", "/start", "[", 400],
    ] as const) {
      assert.equal((await ask(method, `/${id}${path}`, body)).status, expected, `${method} ${path}`);
    }
    for (const name of ["none", "UPPER", "%00", "a".repeat(300)]) {
      for (const [method, path] of [
        ["GET", ""],
        ["DELETE", ""],
        ["POST", "/stop"],
        ["POST", "/start"],
      ] as const) {
        assert.ok(
          [400, 404].includes((await ask(method, `/${name}${path}`)).status),
          `${method} ${name}${path}`,
        );
      }
    }
    assert.equal(count(), before + 1);
  });
});

it("/v1 sandboxes keep their name, state and deadline over a restart, also one whose creation was cut off", async () => {
  const dataDir = await mkdtemp(join(tmpdir(), "coppice-v1-restart-"));
  const memory = memoryBackend({ stopping: {} });
  const clock = fakeClock();
  const start = () =>
    startTestServer({
      clock,
      dataDir,
      server: { sandboxes: { onShutdown: "keep" } },
      plugins: [
        [commands, {}],
        [commandsV1, { autoDelete: "1h" }],
        [memory, {}],
      ],
    });
  const json = async (method: string, path: string, body?: object) => {
    const response = await fetch(`${server.url}/v1/sandboxes${path}`, {
      method,
      ...(body && { body: JSON.stringify(body) }),
    });
    return (await response.json()) as Answer;
  };
  let server = await start();
  const [kept, cut] = [
    await json("POST", "", { image: "base", name: "kept", tier: "persistent", ttl: 7200 }),
    await server.sandboxes.create({
      template: "base",
      timeoutMs: undefined,
      secure: true,
      metadata: { "created-by": "commands-v1" },
    }),
  ];
  await json("POST", "/kept/stop");
  await server.stop();
  server = await start();
  const found = await json("GET", "/kept");
  assert.deepEqual([found.id, found.state, found.deadline], [kept.id, "stopped", kept.deadline]);
  assert.equal((await json("POST", "/kept/start")).state, "running");
  await clock.advance(11_000);
  await delay(50);
  const { deadline } = await json("GET", `/${cut.record.id}`);
  assert.ok(Math.abs(Date.parse(deadline ?? "") - clock.now() - HOUR_MS) <= 2_000, deadline);
  await clock.advance(3 * HOUR_MS);
  await delay(100);
  assert.deepEqual(server.sandboxes.list(), []);
  await server.stop();
  await rm(dataDir, { recursive: true });
});
