import assert from "node:assert/strict";
import { existsSync, mkdtempSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { it, type TestContext } from "node:test";
import { BootError, SandboxError } from "../../kernel/errors.js";
import type { SandboxRecord } from "../model/live-sandbox.js";
import type { SandboxEvent } from "../model/sandbox-event.js";
import type { SnapshotRecord } from "../model/snapshots.js";
import { asStored } from "../testing/start-domain.js";
import { SqliteLedger } from "./sqlite-ledger.js";

function dataDirOf(context: TestContext): string {
  const parent = mkdtempSync(join(tmpdir(), "coppice-ledger-"));
  context.after(() => rmSync(parent, { recursive: true, force: true }));
  return join(parent, "data");
}

async function openedLedger(context: TestContext, dataDir: string, endedKept = 10): Promise<SqliteLedger> {
  const ledger = new SqliteLedger({ dataDir, endedKept });
  context.after(() => ledger.close());
  await ledger.open();
  return ledger;
}

const record: SandboxRecord = {
  id: "i1",
  owner: "acme",
  backend: "memory",
  template: "base",
  snapshot: "s1",
  state: "creating",
  startedAtMs: 1000.5,
  endsAtMs: 2000,
  timeoutMs: 300_000,
  onTimeout: "pause",
  autoResume: true,
  metadata: { "ключ 'x'": "значение" },
  environment: { A: "" },
  accessToken: "secret",
  trafficAccessToken: "another secret",
  maskRequestHost: "localhost:${PORT}",
  limits: { memoryMiB: 64 },
  allowInternetAccess: false,
  egress: { allowOut: ["203.0.113.2", "*.example.com"], denyOut: ["0.0.0.0/0"] },
  mounts: [{ volume: "v1", name: "data", path: "/data", readOnly: true }],
};

it("the next process reads the last write, after each step of a life", async (context) => {
  const dataDir = dataDirOf(context);
  const endless: SandboxRecord = asStored({
    ...record,
    snapshot: undefined,
    endsAtMs: undefined,
    timeoutMs: undefined,
    accessToken: undefined,
    trafficAccessToken: undefined,
    maskRequestHost: undefined,
    egress: undefined,
    mounts: [],
  });
  const killing: SandboxRecord = { ...record, state: "killing" };
  const steps: readonly [(ledger: SqliteLedger) => Promise<void>, readonly unknown[]][] = [
    [async () => {}, []],
    [(ledger) => ledger.write(record), [{ record, endReason: undefined, awaited: [] }]],
    [(ledger) => ledger.write(endless), [{ record: endless, endReason: undefined, awaited: [] }]],
    [
      (ledger) => ledger.write(killing, { endReason: "timed out" }),
      [{ record: killing, endReason: "timed out", awaited: [] }],
    ],
    [
      (ledger) =>
        ledger.end({
          id: "i1",
          owner: "acme",
          backend: "memory",
          template: "base",
          reason: "timed out",
          startedAtMs: 1000.5,
          endedAtMs: 3000,
        }),
      [],
    ],
    [(ledger) => ledger.write(record), [{ record, endReason: undefined, awaited: [] }]],
    [(ledger) => ledger.remove("i1"), []],
    [(ledger) => ledger.remove("i1"), []],
  ];
  for (const [index, [step, expected]] of steps.entries()) {
    const ledger = await openedLedger(context, dataDir);
    await step(ledger);
    await ledger.close();
    const next = await openedLedger(context, dataDir);
    assert.deepEqual(await next.entries(), expected, `after step ${index}`);
    await next.close();
  }
  const last = await openedLedger(context, dataDir);
  const ended = await last.findEnded("i1");
  assert.equal(ended?.reason, "timed out");
  assert.equal(ended?.owner, "acme");
  assert.equal(ended?.endedAtMs, 3000);
});

it("only so many ended sandboxes are remembered, the newest", async (context) => {
  const ledger = await openedLedger(context, dataDirOf(context), 3);
  for (let index = 0; index < 20; index += 1) {
    const base = { owner: "acme", backend: "memory", template: "base", startedAtMs: 0, endedAtMs: index };
    await ledger.end({ ...base, id: `i${index}`, reason: "killed" });
  }
  const known = await Promise.all(Array.from({ length: 20 }, (_, index) => ledger.findEnded(`i${index}`)));
  assert.deepEqual(
    known.filter((ended) => ended !== undefined).map(({ id }) => id),
    ["i17", "i18", "i19"],
  );
});

it("a tenant's ended sandboxes displace its own, not those of another, also after a restart", async (context) => {
  const dataDir = dataDirOf(context);
  const base = { backend: "memory", template: "base", startedAtMs: 0, reason: "killed" } as const;
  const first = await openedLedger(context, dataDir, 20);
  await first.end({ ...base, id: "a", owner: "acme", endedAtMs: 0, accessTokenDigest: undefined });
  await first.close();
  const ledger = await openedLedger(context, dataDir, 20);
  for (let index = 0; index < 100; index += 1) {
    const ended = { ...base, id: `e${index}`, owner: "evil", endedAtMs: index, accessTokenDigest: undefined };
    await ledger.end(ended);
  }
  assert.equal((await ledger.findEnded("a"))?.owner, "acme");
  assert.equal(await ledger.findEnded("e80"), undefined);
  assert.equal((await ledger.findEnded("e81"))?.owner, "evil");
});

it("records from before tenants belong to the default tenant", async (context) => {
  const dataDir = dataDirOf(context);
  await (await openedLedger(context, dataDir)).close();
  const { owner: _owner, ...old } = record;
  const database = new DatabaseSync(join(dataDir, "ledger.sqlite"));
  database.exec(
    "DROP INDEX ended_sandbox_by_owner; ALTER TABLE ended_sandbox DROP COLUMN owner; ALTER TABLE ended_sandbox DROP COLUMN access_token_digest; DROP TABLE snapshot; DROP TABLE awaited_event; DROP TABLE outbox; DROP TABLE volume; DROP TABLE address_lease; PRAGMA user_version = 3",
  );
  database.prepare("INSERT INTO sandbox (id, record) VALUES (?, ?)").run("i1", JSON.stringify(old));
  database.exec("INSERT INTO ended_sandbox VALUES (1, 'i0', 'memory', 'base', 'killed', 1, 2)");
  database.close();
  const ledger = await openedLedger(context, dataDir);
  assert.equal((await ledger.entries())[0]?.record.owner, "default");
  assert.equal((await ledger.findEnded("i0"))?.owner, "default");
});

it("an event is in the outbox with its write, or once the backend has done the written change", async (context) => {
  const dataDir = dataDirOf(context);
  const event = (id: string, type: SandboxEvent["type"]): SandboxEvent => {
    const { id: sandboxId, owner, template, metadata } = record;
    const detail = {
      reason: "request",
      network: { allowInternetAccess: true, allowOut: ["a"], denyOut: [] },
    };
    return {
      id,
      type,
      atMs: 1,
      sandboxId,
      owner,
      template,
      build: "b1",
      metadata,
      detail,
    };
  };
  const ids = async (ledger: SqliteLedger): Promise<readonly string[]> =>
    (await ledger.outbox(100)).map(({ id }) => id);
  const first = await openedLedger(context, dataDir);
  await first.write(record, { happened: event("created", "created") });
  await first.write(record, { awaited: event("pause", "paused") });
  await first.write(record, { awaited: event("resume", "resumed") });
  await first.write(record, { awaited: event("rules", "updated") });
  await first.write(record, { withdrawn: "resume" });
  await first.close();
  const second = await openedLedger(context, dataDir);
  assert.deepEqual((await second.entries())[0]?.awaited, [
    event("pause", "paused"),
    event("rules", "updated"),
  ]);
  await second.confirm({ ...event("pause", "paused"), atMs: 2 });
  await second.confirm(event("resume", "resumed"));
  await assert.rejects(second.write(record, { happened: event("created", "created") }), (error: unknown) => {
    return (
      error instanceof SandboxError && error.code === "unavailable" && /UNIQUE/.test(String(error.cause))
    );
  });
  assert.deepEqual(await second.outbox(100), [
    event("created", "created"),
    { ...event("pause", "paused"), atMs: 2 },
  ]);
  const ended = { ...record, reason: "killed", endedAtMs: 3000 } as const;
  await second.end(ended, event("end", "killed"));
  await second.confirm(event("rules", "updated"));
  await second.writeSnapshot({ id: "s2" } as SnapshotRecord, event("copy", "snapshotted"));
  assert.deepEqual(await ids(second), ["created", "pause", "end", "copy"]);
  await second.clearOutbox(["created", "pause", "never was"]);
  assert.deepEqual(
    (await second.outbox(1)).map(({ id }) => id),
    ["end"],
  );
  await second.close();
  assert.deepEqual(await ids(await openedLedger(context, dataDir)), ["end", "copy"]);
});

it("an address is leased once across networks, and keeps its holder in the next process", async (context) => {
  const dataDir = dataDirOf(context);
  const addresses = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
  const first = await openedLedger(context, dataDir);
  const taken = await Promise.all(
    ["one", "two", "one", "three"].map((holder, index) =>
      first.lease({ network: index === 1 ? "other" : "jails", holder, addresses }),
    ),
  );
  assert.deepEqual(taken, [...addresses, undefined]);
  await first.close();
  const second = await openedLedger(context, dataDir);
  assert.equal(await second.lease({ network: "jails", holder: "three", addresses }), undefined);
  assert.deepEqual(await second.leases("jails"), [
    { address: "10.0.0.1", holder: "one" },
    { address: "10.0.0.3", holder: "one" },
  ]);
  assert.deepEqual(await second.leasedTo({ network: "other", holder: "two" }), ["10.0.0.2"]);
  assert.deepEqual(await second.leasedTo({ network: "other", holder: "one" }), []);
  assert.equal(await second.isLeased("10.0.0.2"), true);
  for (const _again of [1, 2]) await second.endLeases({ network: "jails", holder: "one" });
  assert.deepEqual(await second.leases("jails"), []);
  assert.equal(await second.isLeased("10.0.0.1"), false);
  assert.equal(await second.lease({ network: "jails", holder: "three", addresses }), "10.0.0.1");
  assert.deepEqual(await second.leasedTo({ network: "other", holder: "two" }), ["10.0.0.2"]);
});

it("a lease that cannot be written is refused, and leaves nothing", async (context) => {
  const dataDir = dataDirOf(context);
  const ledger = await openedLedger(context, dataDir);
  const wish = { network: "jails", holder: "one", addresses: ["10.0.0.1"] };
  const path = join(dataDir, "ledger.sqlite");
  renameSync(path, `${path}.away`);
  await assert.rejects(ledger.lease(wish), { code: "unavailable" });
  await assert.rejects(ledger.endLeases(wish), { code: "unavailable" });
  renameSync(`${path}.away`, path);
  assert.deepEqual(await ledger.leases("jails"), []);
  assert.equal(await ledger.lease(wish), "10.0.0.1");
});

it("a ledger of a version without leases keeps its records, and gets leases", async (context) => {
  const dataDir = dataDirOf(context);
  const old = await openedLedger(context, dataDir);
  await old.write(record);
  await old.close();
  const database = new DatabaseSync(join(dataDir, "ledger.sqlite"));
  database.exec("DROP TABLE address_lease; PRAGMA user_version = 9");
  database.close();
  const ledger = await openedLedger(context, dataDir);
  assert.deepEqual(await ledger.entries(), [{ record, endReason: undefined, awaited: [] }]);
  const wish = { network: "jails", holder: "i1", addresses: ["10.0.0.1"] };
  assert.equal(await ledger.lease(wish), "10.0.0.1");
});

it("the ledger is this user's alone", async (context) => {
  const dataDir = dataDirOf(context);
  const ledger = await openedLedger(context, dataDir);
  await ledger.write(record);
  assert.equal(statSync(dataDir).mode & 0o777, 0o700);
  for (const name of ["ledger.sqlite", "ledger.sqlite-wal"]) {
    assert.equal(statSync(join(dataDir, name)).mode & 0o777, 0o600, name);
  }
});

it("a second server on the same data directory is refused, until the first is gone", async (context) => {
  const dataDir = dataDirOf(context);
  const first = await openedLedger(context, dataDir);
  for (const _attempt of [1, 2]) {
    await assert.rejects(new SqliteLedger({ dataDir, endedKept: 1 }).open(), (error: unknown) => {
      return error instanceof BootError && /ledger\.sqlite is in use: another server/.test(error.message);
    });
  }
  await first.write(record);
  await first.close();
  const second = await openedLedger(context, dataDir);
  assert.equal((await second.entries()).length, 1);
});

it("a file that is no ledger is refused by name and left as it was", async (context) => {
  const dataDir = dataDirOf(context);
  const path = join(dataDir, "ledger.sqlite");
  const ledger = await openedLedger(context, dataDir);
  await ledger.write(record);
  await ledger.close();
  const refuses = async (spoil: () => void, reason: RegExp): Promise<void> => {
    spoil();
    const before = readFileSync(path);
    const spoiled = new SqliteLedger({ dataDir, endedKept: 1 });
    const use = async (): Promise<void> => {
      await spoiled.open();
      await spoiled.entries();
    };
    await assert.rejects(use(), (error: unknown) => {
      assert.ok(error instanceof BootError);
      assert.ok(error.message.includes(path), error.message);
      assert.match(error.message, reason);
      return true;
    });
    await spoiled.close();
    assert.deepEqual(readFileSync(path), before, "the file changed");
  };
  const change = (sql: string) => (): void => {
    const database = new DatabaseSync(path);
    database.exec(sql);
    database.close();
  };
  await refuses(change("UPDATE sandbox SET record = json_remove(record, '$.backend')"), /backend/);
  await refuses(change("UPDATE sandbox SET record = 'x'"), /JSON/);
  await refuses(change("PRAGMA user_version = 99"), /newer version/);
  await refuses(() => writeFileSync(path, "this is a text file\n".repeat(500)), /not a database/);
  rmSync(path);
  assert.ok(existsSync(dataDir));
});

it("an impossible data directory is one clear problem", async (context) => {
  const dataDir = dataDirOf(context);
  writeFileSync(dataDir, "");
  await assert.rejects(new SqliteLedger({ dataDir, endedKept: 1 }).open(), (error: unknown) => {
    return error instanceof BootError && error.message.includes(join(dataDir, "ledger.sqlite"));
  });
});
