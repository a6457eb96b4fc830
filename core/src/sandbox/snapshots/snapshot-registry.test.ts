import assert from "node:assert/strict";
import { it } from "node:test";
import type { LiveSandbox } from "../model/live-sandbox.js";
import type { SnapshotRecord } from "../model/snapshots.js";
import { DEFAULT_TENANT } from "../model/tenant-records.js";
import { World } from "../testing/crashing-server.js";
import { asStored, base, fails, type Fixture, MINUTE_MS, startDomain } from "../testing/start-domain.js";

const snapshots = {};
const HOUR_MS = 60 * MINUTE_MS;

const own = (domain: Fixture) => domain.snapshots.of(DEFAULT_TENANT);

async function* bytes(text: string): AsyncGenerator<Uint8Array> {
  yield Buffer.from(text);
}

async function put(sandbox: LiveSandbox, text: string): Promise<void> {
  await sandbox.runtime.files.write("/home/user/file", bytes(text));
}

async function textIn(sandbox: LiveSandbox): Promise<string> {
  await using file = await sandbox.runtime.files.read("/home/user/file");
  const parts: Uint8Array[] = [];
  for await (const part of file.content()) parts.push(part);
  return Buffer.concat(parts).toString();
}

it("a sandbox begins with the files of a snapshot, found by its id or its name, and outlives it", async (context) => {
  const domain = await startDomain(context, {
    script: { snapshots },
    settings: { maximumLimits: { memoryMiB: 64 } },
  });
  const source = await domain.sandboxes.create({ ...base, limits: { memoryMiB: 64 } });
  await put(source, "one");
  const one = await own(domain).take(source.record.id, "Saved");
  await put(source, "two");
  const two = await own(domain).take(source.record.id, "saved");
  await domain.sandboxes.kill(source.record.id);
  assert.match(one.id, /^s[a-z0-9]{20}$/);
  const names = new Map(
    own(domain)
      .list()
      .map(({ id, name }) => [id, name]),
  );
  assert.deepEqual([names.size, names.get(one.id), names.get(two.id)], [2, undefined, "saved:default"]);
  const made = async (template: string) => domain.sandboxes.create({ ...base, template });
  assert.equal(await textIn(await made(one.id)), "one");
  assert.equal(await textIn(await made(`${one.id}:default`)), "one");
  const last = await made("saved");
  assert.deepEqual(
    [last.record.snapshot, last.record.template, last.record.limits],
    [two.id, "base", { memoryMiB: 64 }],
  );
  await own(domain).remove(two.id);
  assert.equal(await textIn(last), "two");
  await assert.rejects(made("saved"), fails("not_found", /template 'saved' not found/));
  await assert.rejects(own(domain).remove(two.id), fails("not_found", /not found/));
  assert.deepEqual(await domain.ledger.snapshots(), asStored(own(domain).list()));
});

it("a fork makes sandboxes like its source, and keeps no snapshot", async (context) => {
  const domain = await startDomain(context, { script: { snapshots, pausing: {} }, settings: { maximum: 3 } });
  const source = await domain.sandboxes.create({
    ...base,
    metadata: { a: "1" },
    environment: { B: "2" },
    onTimeout: "pause",
    maskRequestHost: "localhost",
  });
  await put(source, "kept");
  const forked = await own(domain).fork(source.record.id, { count: 3, timeoutMs: MINUTE_MS });
  const made = forked.flatMap((one) => ("sandbox" in one ? [one.sandbox] : []));
  const errors = forked.flatMap((one) => ("error" in one ? [one.error] : []));
  assert.equal(made.length, 2);
  assert.ok(fails("resource_exhausted", /maximum number/)(errors[0]));
  for (const { record } of made) {
    const { metadata, environment, onTimeout, maskRequestHost, endsAtMs } = record;
    assert.deepEqual(
      [metadata, environment, onTimeout, maskRequestHost],
      [{ a: "1" }, { B: "2" }, "pause", "localhost"],
    );
    assert.equal(endsAtMs, domain.clock.now() + MINUTE_MS);
    assert.notEqual(record.accessToken, source.record.accessToken);
    assert.deepEqual([record.template, record.snapshot], ["base", undefined], "clients know its base");
  }
  assert.equal(await textIn(made[0] as LiveSandbox), "kept");
  assert.deepEqual([own(domain).list(), await domain.ledger.snapshots()], [[], []]);
  await domain.sandboxes.pause(source.record.id);
  await assert.rejects(
    own(domain).fork(source.record.id, { count: 1, timeoutMs: MINUTE_MS }),
    fails("aborted", /is paused and cannot be forked; resume it first$/),
  );
});

it("a fork of a sandbox that began with a snapshot is told by that snapshot, and its forks, too", async (context) => {
  const domain = await startDomain(context, { script: { snapshots } });
  const source = await domain.sandboxes.create(base);
  const { id: template } = await own(domain).take(source.record.id);
  let { id } = (await domain.sandboxes.create({ ...base, template })).record;
  for (let generation = 0; generation < 2; generation += 1) {
    const [forked] = await own(domain).fork(id, { count: 1, timeoutMs: MINUTE_MS });
    assert.ok(forked !== undefined && "sandbox" in forked);
    const { record } = forked.sandbox;
    assert.deepEqual([record.template, record.snapshot], ["base", template]);
    id = record.id;
  }
});

it("a tenant has its own snapshots and names, and cannot see others'", async (context) => {
  const domain = await startDomain(context, { script: { snapshots } });
  const mine = domain.snapshots.of("mine");
  const theirs = domain.snapshots.of("theirs");
  const { record } = await domain.sandboxes.create({ ...base, owner: "mine" });
  const { id } = await mine.take(record.id, "name");
  const unknown = fails("not_found", /doesn't exist or you don't have access/);
  await assert.rejects(theirs.take(record.id), unknown);
  await assert.rejects(theirs.fork(record.id, { count: 1, timeoutMs: 1000 }), unknown);
  assert.deepEqual([theirs.list(), theirs.find(id), theirs.find("name")], [[], undefined, undefined]);
  await assert.rejects(theirs.remove(id), fails("not_found", /not found/));
  await assert.rejects(
    domain.sandboxes.create({ ...base, owner: "theirs", template: "name" }),
    fails("not_found", /template 'name'/),
  );
  const other = await domain.sandboxes.create({ ...base, owner: "theirs" });
  await theirs.take(other.record.id, "name");
  assert.equal(mine.find("name")?.id, id);
});

it("an impossible snapshot is refused, and leaves nothing", async (context) => {
  let isBroken = false;
  const onTake = (): void => {
    if (isBroken) throw new Error("disk full");
  };
  const domain = await startDomain(context, {
    script: { snapshots: { onTake } },
    settings: { maximumSnapshots: 1 },
  });
  const { record } = await domain.sandboxes.create(base);
  const take = (name?: string): Promise<SnapshotRecord> => own(domain).take(record.id, name);
  await assert.rejects(take("base"), fails("already_exists", /the name of a template/));
  await assert.rejects(take("a b"), fails("invalid_argument", /Invalid template reference/));
  isBroken = true;
  await assert.rejects(take(), fails("unavailable", /no snapshot could be taken/));
  assert.deepEqual([own(domain).list(), await domain.ledger.snapshots()], [[], []]);
  isBroken = false;
  await take();
  await assert.rejects(take(), fails("resource_exhausted", /maximum number of snapshots/));
  const without = await startDomain(context);
  const plain = await without.sandboxes.create(base);
  await assert.rejects(
    own(without).take(plain.record.id),
    fails("failed_precondition", /does not support snapshots/),
  );
});

it("a snapshot whose removal failed counts until it is gone, is retried, and reports its state", async (context) => {
  let isBroken = true;
  const onRemove = (): void => {
    if (isBroken) throw new Error("busy");
  };
  const domain = await startDomain(context, {
    script: { snapshots: { onRemove } },
    settings: { maximumSnapshots: 1 },
  });
  const { record } = await domain.sandboxes.create({ ...base, timeoutMs: HOUR_MS });
  const { id } = await own(domain).take(record.id);
  const notYet = fails("unavailable", /snapshot "\w+" could not be destroyed yet; the server keeps trying/);
  await assert.rejects(own(domain).remove(id), notYet);
  await assert.rejects(own(domain).remove(id), notYet);
  assert.equal(own(domain).find(id), undefined);
  await assert.rejects(own(domain).take(record.id), fails("resource_exhausted", /maximum number/));
  isBroken = false;
  await domain.clock.advance(MINUTE_MS);
  assert.deepEqual([await domain.backend.snapshots?.list(), await domain.ledger.snapshots()], [[], []]);
  await assert.rejects(own(domain).remove(id), fails("not_found", /not found/));
  await own(domain).take(record.id);
});

it("while a snapshot is taken nothing else changes the sandbox but its end, and a pause waits", async (context) => {
  let gate = Promise.withResolvers<void>();
  const domain = await startDomain(context, {
    script: { pausing: {}, snapshots: { onTake: () => gate.promise } },
  });
  const { sandboxes } = domain;
  const { id } = (await sandboxes.create(base)).record;
  const taken = own(domain).take(id);
  const pausing = sandboxes.pause(id);
  assert.equal(sandboxes.get(id).record.state, "running");
  gate.resolve();
  await Promise.all([taken, pausing]);
  assert.equal(sandboxes.get(id).record.state, "paused");
  await own(domain).remove((await taken).id);
  await sandboxes.resume(id, MINUTE_MS);

  gate = Promise.withResolvers();
  const taking = own(domain).take(id);
  await assert.rejects(own(domain).take(id), fails("aborted", /is being snapshotted/));
  (await sandboxes.use(sandboxes.get(id)))();
  const failed = assert.rejects(taking, fails("aborted", /is being killed/));
  await sandboxes.kill(id);
  gate.resolve();
  await failed;
  assert.deepEqual(await domain.backend.snapshots?.list(), []);
});

it("expired snapshots are removed", async (context) => {
  const domain = await startDomain(context, { script: { snapshots }, settings: { snapshotsKept: "1h" } });
  const { record } = await domain.sandboxes.create({ ...base, timeoutMs: 10 * HOUR_MS });
  const { id } = await own(domain).take(record.id);
  await domain.clock.advance(HOUR_MS - 1);
  assert.equal(own(domain).find(id)?.id, id);
  await domain.clock.advance(1);
  assert.deepEqual([own(domain).list(), await domain.backend.snapshots?.list()], [[], []]);
});

it("after a crash at any step snapshots are complete or gone", async () => {
  const world = new World();
  const { ledger, backend } = world;
  const record = (id: string, state: SnapshotRecord["state"]): SnapshotRecord => ({
    id,
    state,
    owner: DEFAULT_TENANT,
    name: undefined,
    isTemporary: id === "fork",
    backend: "memory",
    template: "base",
    sandboxId: "gone",
    takenAtMs: 1,
    limits: {},
  });
  const controller = new AbortController();
  const source = await backend.provision(
    { id: "gone", template: "base", limits: {}, allowInternetAccess: true },
    controller.signal,
  );
  for (const id of ["taking", "ready", "removing", "fork", "unknown"]) await source.snapshots?.take(id);
  await ledger.writeSnapshot(record("taking", "taking"));
  await ledger.writeSnapshot(record("begun", "taking"));
  await ledger.writeSnapshot(record("ready", "ready"));
  await ledger.writeSnapshot(record("lost", "ready"));
  await ledger.writeSnapshot(record("fork", "ready"));
  await ledger.writeSnapshot(record("removing", "removing"));
  await ledger.writeSnapshot({ ...record("elsewhere", "ready"), backend: "not enabled" });
  const { domain } = await world.start();
  const tenant = domain.snapshots.of(DEFAULT_TENANT);
  assert.deepEqual(
    tenant.list().map(({ id }) => id),
    ["ready"],
  );
  assert.deepEqual(await backend.snapshots?.list(), ["ready"]);
  assert.deepEqual(
    (await ledger.snapshots()).map(({ id }) => id),
    ["ready", "elsewhere"],
  );
  await domain.stop();
});
