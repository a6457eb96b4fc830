import assert from "node:assert/strict";
import { it } from "node:test";
import { Registry } from "prom-client";
import { createLogger } from "../../observe/logger.js";
import { MemoryBackend } from "../../testing/memory-backend.js";
import { createSandboxDomain } from "../domain.js";
import type { LiveSandbox } from "../model/live-sandbox.js";
import { sandboxesConfig } from "../model/sandboxes-config.js";
import { DEFAULT_TENANT } from "../model/tenant-records.js";
import { base, fails, type Fixture, FragileLedger, MINUTE_MS, startDomain } from "../testing/start-domain.js";
import type { VolumeRecord } from "../model/volumes.js";

const volumes = {};

const own = (domain: Fixture) => domain.volumes.of(DEFAULT_TENANT);

async function put(sandbox: LiveSandbox, path: string, text: string): Promise<void> {
  async function* bytes(): AsyncGenerator<Uint8Array> {
    yield Buffer.from(text);
  }
  await sandbox.runtime.files.write(path, bytes());
}

async function textAt(sandbox: LiveSandbox, path: string): Promise<string> {
  await using file = await sandbox.runtime.files.read(path);
  return Buffer.concat(await Array.fromAsync(file.content())).toString();
}

it("sandboxes share a volume, by its name or id, which outlives them", async (context) => {
  const domain = await startDomain(context, { script: { volumes } });
  const volume = await own(domain).create({ name: "Shared_1" });
  assert.match(volume.id, /^v[a-z0-9]{20}$/);
  assert.deepEqual([volume.sizeMiB, volume.backend, volume.state], [10_240, "memory", "ready"]);
  const mounts = [{ volume: "Shared_1", path: "/data" }];
  const one = await domain.sandboxes.create({ ...base, mounts });
  await put(one, "/data/file", "from one");
  await domain.sandboxes.kill(one.record.id);
  const [writer, reader] = await Promise.all([
    domain.sandboxes.create({ ...base, mounts }),
    domain.sandboxes.create({ ...base, mounts: [{ volume: volume.id, path: "/x", readOnly: true }] }),
  ]);
  assert.deepEqual(reader.record.mounts, [
    { volume: volume.id, name: "Shared_1", path: "/x", readOnly: true },
  ]);
  assert.equal(await textAt(writer, "/data/file"), "from one");
  await put(writer, "/data/file", "again");
  assert.equal(await textAt(reader, "/x/file"), "again");
  await assert.rejects(put(reader, "/x/file", "no"), fails("permission_denied", /read-only/));
  assert.equal(await own(domain).usage(volume.id), 5);
  assert.deepEqual(await domain.ledger.volumes(), own(domain).list());
  const entries = await domain.ledger.entries();
  assert.ok(entries.some(({ record }) => record.mounts[0]?.readOnly === true));
});

it("a removed volume is gone for all clients, and its data with the last sandbox that mounts it", async (context) => {
  const domain = await startDomain(context, { script: { volumes } });
  const volume = await own(domain).create({ name: "data" });
  const mounts = [{ volume: "data", path: "/data" }];
  const [one, two] = [
    await domain.sandboxes.create({ ...base, mounts }),
    await domain.sandboxes.create({ ...base, mounts }),
  ];
  await put(one, "/data/file", "kept");
  await own(domain).remove(volume.id);
  await assert.rejects(own(domain).remove(volume.id), fails("not_found", /not found/));
  assert.deepEqual([own(domain).list(), own(domain).find("data")], [[], undefined]);
  await assert.rejects(
    domain.sandboxes.create({ ...base, mounts }),
    fails("invalid_argument", /volume mount #0: volume 'data' not found/),
  );
  const again = await own(domain).create({ name: "data" });
  await domain.sandboxes.kill(one.record.id);
  assert.equal(await textAt(two, "/data/file"), "kept");
  assert.deepEqual((await domain.backend.volumes?.list())?.toSorted(), [volume.id, again.id].toSorted());
  await domain.sandboxes.kill(two.record.id);
  assert.deepEqual(await domain.backend.volumes?.list(), [again.id]);
  await own(domain).remove(again.id);
  assert.deepEqual([await domain.backend.volumes?.list(), await domain.ledger.volumes()], [[], []]);
});

it("a fork has the volumes of its source, and a snapshot contains nothing of them", async (context) => {
  const domain = await startDomain(context, { script: { volumes, snapshots: {} } });
  await own(domain).create({ name: "data" });
  const mounts = [{ volume: "data", path: "/home/user/data" }];
  const source = await domain.sandboxes.create({ ...base, mounts });
  await put(source, "/home/user/data/file", "shared");
  const snapshots = domain.snapshots.of(DEFAULT_TENANT);
  const [forked] = await snapshots.fork(source.record.id, { count: 1, timeoutMs: MINUTE_MS });
  assert.ok(forked !== undefined && "sandbox" in forked);
  await put(forked.sandbox, "/home/user/data/file", "by the fork");
  assert.equal(await textAt(source, "/home/user/data/file"), "by the fork");
  const { id } = await snapshots.take(source.record.id);
  const bare = await domain.sandboxes.create({ ...base, template: id });
  await assert.rejects(textAt(bare, "/home/user/data/file"), fails("not_found", /no such file/));
});

it("a tenant has its own volumes and names, and cannot see others'", async (context) => {
  const domain = await startDomain(context, { script: { volumes } });
  const [mine, theirs] = [domain.volumes.of("mine"), domain.volumes.of("theirs")];
  const { id } = await mine.create({ name: "data" });
  const unknown = fails("not_found", /volume 'v[a-z0-9]{20}' not found/);
  assert.deepEqual([theirs.list(), theirs.find(id), theirs.find("data")], [[], undefined, undefined]);
  assert.throws(() => theirs.get(id), unknown);
  await assert.rejects(theirs.usage(id), unknown);
  await assert.rejects(theirs.remove(id), unknown);
  for (const volume of [id, "data"]) {
    await assert.rejects(
      domain.sandboxes.create({ ...base, owner: "theirs", mounts: [{ volume, path: "/data" }] }),
      fails("invalid_argument", /volume mount #0: volume '\w+' not found/),
    );
  }
  await theirs.create({ name: "data" });
  assert.equal(mine.find("data")?.id, id);
});

it("what cannot be made is refused, and leaves nothing", async (context) => {
  let isBroken = true;
  const onMake = (): void => {
    if (isBroken) throw new Error("disk full");
  };
  const limits = { maximumVolumes: 1, volumeSize: "16MiB", maximumVolumeSize: "32MiB" };
  const domain = await startDomain(context, { script: { volumes: { onMake } }, settings: limits });
  const make = (name: string, sizeMiB?: number): Promise<VolumeRecord> =>
    own(domain).create({ name, sizeMiB });
  for (const name of ["", "a b", "a/b", "..", "a".repeat(129)]) {
    await assert.rejects(make(name), fails("invalid_argument", /Invalid volume name/));
  }
  for (const size of [0, -1, 1.5, 33]) {
    await assert.rejects(make("name", size), fails("invalid_argument", /1 to 32 MiB/));
  }
  await assert.rejects(make("name"), fails("unavailable", /no volume 'name' could be made/));
  assert.deepEqual([own(domain).list(), await domain.ledger.volumes()], [[], []]);
  isBroken = false;
  const [made, refused] = await Promise.allSettled([make("name", 32), make("name")]);
  assert.ok(made?.status === "fulfilled" && made.value.sizeMiB === 32);
  assert.ok(refused?.status === "rejected" && fails("already_exists", /already exists/)(refused.reason));
  await assert.rejects(make("other"), fails("resource_exhausted", /maximum number of volumes \(1\)/));
  const without = await startDomain(context);
  await assert.rejects(own(without).create({ name: "a" }), fails("failed_precondition", /support volumes/));
});

it("invalid mounts are refused, each with its reason, before anything is made", async (context) => {
  const domain = await startDomain(context, { script: { volumes } });
  await own(domain).create({ name: "a" });
  const refused: readonly (readonly [paths: readonly string[], reason: RegExp])[] = [
    [[""], /#0: path cannot be empty/],
    [["data"], /#0: path must be absolute/],
    [["/a/../b"], /'\.\.'/],
    [["/a/"], /empty components/],
    [["//a"], /empty components/],
    [["/a\nb"], /control character/],
    [["/a\0b"], /control character/],
    [[`/${"a".repeat(1024)}`], /at most 1024 characters/],
    [["/"], /the system's/],
    [["/proc/sys"], /the system's/],
    [["/dev"], /the system's/],
    [["/sys/fs"], /the system's/],
    [["/etc/ssh"], /the system's/],
    [["/run"], /the system's/],
    [["/a", "/a"], /#1: path '\/a' is already used/],
    [["/a", "/a/b"], /#1: path '\/a\/b' and '\/a' lie in each other/],
    [["/a/b", "/a", "relative"], /#1: path .* lie in each other; volume mount #2: path must be absolute/],
  ];
  for (const [paths, reason] of refused) {
    const mounts = paths.map((path) => ({ volume: "a", path }));
    await assert.rejects(domain.sandboxes.create({ ...base, mounts }), fails("invalid_argument", reason));
  }
  assert.deepEqual([domain.sandboxes.list(), await domain.ledger.entries()], [[], []]);
  domain.backends.add(new MemoryBackend({ name: "second", volumes }));
  await assert.rejects(
    domain.sandboxes.create({ ...base, backend: "second", mounts: [{ volume: "a", path: "/a" }] }),
    fails("invalid_argument", /'a' is kept by backend 'memory', the sandbox is made by 'second'/),
  );
});

it("after a crash at any step volumes are complete or gone, and none is lost with the ledger", async (context) => {
  const ledger = new FragileLedger();
  const backend = new MemoryBackend({ volumes });
  const record = (id: string, state: VolumeRecord["state"]): VolumeRecord => ({
    id,
    state,
    name: id,
    owner: DEFAULT_TENANT,
    backend: "memory",
    sizeMiB: 1,
    token: "secret",
    createdAtMs: 1,
  });
  const ids = ["making", "ready", "removing", "used", "unknown"];
  for (const id of ids) await backend.volumes?.make({ id, sizeMiB: 1 });
  await ledger.writeVolume(record("making", "making"));
  await ledger.writeVolume(record("begun", "making"));
  await ledger.writeVolume(record("ready", "ready"));
  await ledger.writeVolume(record("lost", "ready"));
  await ledger.writeVolume(record("removing", "removing"));
  await ledger.writeVolume(record("used", "removing"));
  await ledger.writeVolume({ ...record("elsewhere", "ready"), backend: "not enabled" });
  const start = async () => {
    const domain = createSandboxDomain({
      config: sandboxesConfig.parse({ onShutdown: "keep" }),
      dataDir: "unused",
      clock: { now: () => 0, after: () => () => {} },
      log: createLogger("silent"),
      metrics: new Registry(),
      ledger: () => ledger,
    });
    domain.backends.add(backend);
    await domain.start();
    context.after(() => domain.stop());
    return domain;
  };
  const mounts = [{ volume: "used", path: "/data", readOnly: false }];
  const spec = { id: "i1", template: "base", limits: {}, allowInternetAccess: true, mounts };
  await backend.provision(spec, new AbortController().signal);
  await ledger.write({
    ...spec,
    owner: DEFAULT_TENANT,
    backend: "memory",
    snapshot: undefined,
    state: "running",
    startedAtMs: 0,
    endsAtMs: undefined,
    timeoutMs: undefined,
    onTimeout: "kill",
    autoResume: false,
    metadata: {},
    environment: {},
    accessToken: undefined,
    trafficAccessToken: undefined,
    maskRequestHost: undefined,
    egress: undefined,
    mounts: [{ volume: "used", name: "used", path: "/data", readOnly: false }],
  });
  const domain = await start();
  const names = domain.volumes
    .of(DEFAULT_TENANT)
    .list()
    .map(({ name }) => name);
  assert.deepEqual(names, ["ready"]);
  assert.deepEqual((await backend.volumes?.list())?.toSorted(), ["ready", "unknown", "used"]);
  await domain.sandboxes.kill("i1");
  assert.deepEqual((await backend.volumes?.list())?.toSorted(), ["ready", "unknown"]);
  const left = (await ledger.volumes()).map(({ id }) => id);
  assert.deepEqual(left, ["ready", "elsewhere"]);
});

it("a volume that its backend cannot remove now is gone for all clients, and the next start tries again", async (context) => {
  const ledger = new FragileLedger();
  let isBroken = true;
  const onRemove = (): void => {
    if (isBroken) throw new Error("busy");
  };
  const domain = await startDomain(context, { script: { volumes: { onRemove } }, ledger });
  const { id } = await own(domain).create({ name: "data" });
  await assert.rejects(own(domain).remove(id), fails("unavailable", /could not be destroyed yet/));
  assert.deepEqual(own(domain).list(), []);
  assert.deepEqual(
    (await ledger.volumes()).map(({ state }) => state),
    ["removing"],
  );
  isBroken = false;
  const next = createSandboxDomain({
    config: sandboxesConfig.parse({}),
    dataDir: "unused",
    clock: domain.clock,
    log: createLogger("silent"),
    metrics: new Registry(),
    ledger: () => ledger,
  });
  next.backends.add(domain.backend);
  await next.start();
  context.after(() => next.stop());
  assert.deepEqual([await domain.backend.volumes?.list(), await ledger.volumes()], [[], []]);
});

it("a volume whose removal failed counts until it is gone, is retried, and reports its state", async (context) => {
  let isBroken = true;
  const onRemove = (): void => {
    if (isBroken) throw new Error("busy");
  };
  const domain = await startDomain(context, {
    script: { volumes: { onRemove } },
    settings: { maximumVolumes: 1 },
  });
  const volumesOf = own(domain);
  const { id } = await volumesOf.create({ name: "data" });
  const notYet = fails("unavailable", /volume "\w+" could not be destroyed yet; the server keeps trying/);
  await assert.rejects(volumesOf.remove(id), notYet);
  await assert.rejects(volumesOf.remove(id), notYet);
  await assert.rejects(
    domain.volumes.of("somebody else").remove(id),
    fails("not_found", /not found/),
    "nobody else learns of it",
  );
  await assert.rejects(volumesOf.create({ name: "data" }), fails("resource_exhausted", /maximum number/));
  isBroken = false;
  await domain.clock.advance(MINUTE_MS);
  assert.deepEqual([await domain.backend.volumes?.list(), await domain.ledger.volumes()], [[], []]);
  await assert.rejects(volumesOf.remove(id), fails("not_found", /not found/));
  await volumesOf.create({ name: "data" });
});
