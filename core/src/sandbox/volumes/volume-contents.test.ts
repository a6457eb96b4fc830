import assert from "node:assert/strict";
import { it } from "node:test";
import { DEFAULT_TENANT } from "../model/tenant-records.js";
import { assertNothingLeft, base, fails, MINUTE_MS, startDomain } from "../testing/start-domain.js";
import type { OpenVolume } from "../model/volumes.js";

async function* bytes(text: string): AsyncGenerator<Uint8Array> {
  yield Buffer.from(text);
}

async function textOf({ files }: OpenVolume, path: string): Promise<string> {
  await using file = await files.read(path);
  return Buffer.concat(await Array.fromAsync(file.content())).toString();
}

it("a volume's contents are accessible by its token, beside its sandboxes, and are closed when idle", async (context) => {
  const domain = await startDomain(context, { script: { volumes: {} } });
  const { volumes, sandboxes, backend, clock } = domain;
  const own = volumes.of(DEFAULT_TENANT);
  const volume = await own.create({ name: "data" });
  const other = await own.create({ name: "other" });
  {
    await using opened = await volumes.open(volume.id, volume.token);
    await using again = await volumes.open(volume.id, volume.token);
    assert.equal(backend.alive.sandboxes, 1, "one for all who use it");
    assert.deepEqual(sandboxes.list(), [], "and nobody's sandbox");
    const written = await opened.files.write("/deep/file", bytes("text"));
    assert.deepEqual([written.path, written.name], ["/deep/file", "file"]);
    assert.equal(await textOf(again, "/deep/file"), "text");
    const listed = await Array.fromAsync(opened.files.list("/", 2));
    assert.deepEqual(
      listed.map(({ path }) => path),
      ["/deep", "/deep/file"],
    );
    assert.equal((await opened.files.stat("/")).path, "/");
    assert.deepEqual(
      (await opened.files.stat("/../../deep/../deep")).path,
      "/deep",
      "no way leads above the volume",
    );
    await assert.rejects(opened.files.stat("/home/user"), fails("not_found", /./));
    const changed = await opened.files.change?.("/deep/file", { mode: 0o600, owner: { uid: 7, gid: 8 } });
    assert.deepEqual([changed?.mode, changed?.uid, changed?.gid], [0o600, 7, 8]);
    const sandbox = await sandboxes.create({ ...base, mounts: [{ volume: "data", path: "/data" }] });
    assert.equal((await sandbox.runtime.files.stat("/data/deep/file")).uid, 7);
    await clock.advance(2 * MINUTE_MS);
    assert.equal(await textOf(opened, "/deep/file"), "text", "it is not closed while it is used");
    await sandboxes.kill(sandbox.record.id);
  }
  for (const [id, token] of [
    [volume.id, "wrong"],
    [volume.id, ""],
    [volume.id, other.token],
    ["v00000000000000000000", volume.token],
    ["v00000000000000000000", "none"],
  ] as const) {
    await assert.rejects(
      volumes.open(id, token),
      fails("unauthenticated", /^there is no such volume, or this is not its token$/),
    );
  }
  assert.equal(backend.alive.sandboxes, 1);
  await clock.advance(MINUTE_MS);
  assert.equal(backend.alive.sandboxes, 0);
  const opened = await volumes.open(volume.id, volume.token);
  await using stays = await volumes.open(volume.id, volume.token);
  assert.equal(await textOf(opened, "/deep/file"), "text");
  for (let times = 0; times < 2; times += 1) await opened[Symbol.asyncDispose]();
  await clock.advance(2 * MINUTE_MS);
  assert.equal(backend.alive.sandboxes, 1, "who leaves twice leaves for nobody else");
  await stays[Symbol.asyncDispose]();
  await using back = await volumes.open(volume.id, volume.token);
  await clock.advance(2 * MINUTE_MS);
  assert.equal(await textOf(back, "/deep/file"), "text");
  assert.equal(backend.alive.sandboxes, 1, "it is used again before it was to be closed");
});

it("a volume that is removed, or a server that stops, ends all use of it", async (context) => {
  const domain = await startDomain(context, { script: { volumes: {} } });
  const { volumes, backend } = domain;
  const own = volumes.of(DEFAULT_TENANT);
  const volume = await own.create({ name: "data" });
  await using opened = await volumes.open(volume.id, volume.token);
  await own.remove(volume.id);
  assert.equal(backend.alive.sandboxes, 0);
  assert.deepEqual(await backend.volumes?.list(), []);
  await assert.rejects(volumes.open(volume.id, volume.token), fails("unauthenticated", /no such volume/));
  await opened[Symbol.asyncDispose]();
  await assertNothingLeft(domain);

  // Its data stays for the sandbox that has it mounted, and for no other.
  const mounted = await own.create({ name: "mounted" });
  const sandbox = await domain.sandboxes.create({ ...base, mounts: [{ volume: "mounted", path: "/data" }] });
  await using left = await volumes.open(mounted.id, mounted.token);
  await left.files.write("/file", bytes("text"));
  await own.remove(mounted.id);
  assert.equal(backend.alive.sandboxes, 1, "what its contents were used by is still there");
  assert.equal((await sandbox.runtime.files.stat("/data/file")).name, "file");
  await domain.sandboxes.kill(sandbox.record.id);
  assert.deepEqual(await backend.volumes?.list(), []);

  const second = await own.create({ name: "data" });
  await volumes.open(second.id, second.token);
  await domain.stop();
  assert.equal(backend.alive.sandboxes, 0);
});

it("an ended access sandbox is replaced, a failed one retried, and their number is limited", async (context) => {
  let isBroken = false;
  const onProvision = (): void => {
    if (isBroken) throw new Error("no room");
  };
  const domain = await startDomain(context, {
    script: { volumes: {}, onProvision },
    settings: { openVolumes: { maximum: 2, idle: "1h" } },
  });
  const { volumes, backend } = domain;
  const own = volumes.of(DEFAULT_TENANT);
  const [one, two, three] = [
    await own.create({ name: "one" }),
    await own.create({ name: "two" }),
    await own.create({ name: "three" }),
  ];
  isBroken = true;
  await assert.rejects(volumes.open(one.id, one.token), /no room/);
  isBroken = false;
  const first = await volumes.open(one.id, one.token);
  const [lost] = [...backend.sandboxes.values()];
  lost?.lose("backend lost");
  await new Promise(setImmediate);
  const anew = await volumes.open(one.id, one.token);
  assert.equal((await anew.files.stat("/")).kind, "directory");
  await first[Symbol.asyncDispose]();
  await volumes.open(two.id, two.token);
  await assert.rejects(volumes.open(three.id, three.token), fails("unavailable", /too many volumes/));
  await anew[Symbol.asyncDispose]();
  await volumes.open(three.id, three.token);
  assert.equal(backend.alive.sandboxes, 2, "one that nobody uses made room");
});

it("volumes that one tenant holds open leave room for those of another, and unused ones give way", async (context) => {
  const settings = { openVolumes: { maximum: 4 } };
  const { volumes, tenants } = await startDomain(context, { script: { volumes: {} }, settings });
  tenants.add(() => ["acme", "evil"]);
  const made = (tenant: string, name: string) => volumes.of(tenant).create({ name });
  const open = async (tenant: string, name: string): Promise<OpenVolume> => {
    const { id, token } = await made(tenant, name);
    return volumes.open(id, token);
  };
  await using _first = await open("evil", "one");
  const second = await open("evil", "two");
  await assert.rejects(open("evil", "three"), fails("unavailable", /sandboxes\.openVolumes/));
  await using _other = await open("acme", "one");
  await second[Symbol.asyncDispose]();
  await using _third = await open("evil", "four");
});
