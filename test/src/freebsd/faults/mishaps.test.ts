import assert from "node:assert/strict";
import { chmod, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import type { Sandbox, SandboxBackend } from "@coppice/core/backend";
import { MemoryLeases } from "@coppice/core/testing";
import {
  type FreebsdHost,
  openFreebsdHost,
  reasonWithoutFreebsdHost,
} from "../../harness/freebsd/freebsd-host.js";
import { startCoppice } from "../../harness/server/coppice-command.js";
import { newId } from "../../harness/freebsd/jail-faults.js";

function specOf(id: string) {
  return { id, template: "base", limits: {}, allowInternetAccess: false };
}

async function make(backend: SandboxBackend): Promise<Sandbox> {
  return backend.provision(specOf(newId()), new AbortController().signal);
}

async function outputOf(sandbox: Sandbox, script: string): Promise<string> {
  const env = { PATH: "/usr/bin:/bin" };
  const started = await sandbox.spawn({ path: "/bin/sh", args: ["-c", script], env, input: "none" });
  const pieces: Uint8Array[] = [];
  for await (const { data } of started.output) pieces.push(data);
  return Buffer.concat(pieces).toString();
}

describe("jail-freebsd, after mishaps of its host", { skip: reasonWithoutFreebsdHost() ?? false }, () => {
  let host: FreebsdHost;
  const zfs = (...words: readonly string[]) => host.run(host.settings.programs.zfs, ...words);
  const sh = (script: string) => host.run("/bin/sh", "-c", `PATH=/usr/sbin:/usr/bin:/sbin:/bin; ${script}`);

  before(async () => {
    host = await openFreebsdHost();
  });
  after(() => host[Symbol.asyncDispose]());

  it("starts beside a dataset that was renamed by hand, and leaves it alone", async () => {
    const first = host.backend();
    const [renamed, kept] = [await make(first), await make(first)];
    for (const each of [renamed, kept]) await each.stopping?.stop();
    await first.close();
    const [before, now] = ["", "-old"].map((end) => `coppice/jails/e2b-${renamed.id}${end}`) as [
      string,
      string,
    ];
    await zfs("unmount", "-f", before);
    await zfs("rename", before, now);
    const second = host.backend();
    const found = await second.recover();
    assert.deepEqual(
      found.map(({ id }) => id),
      [kept.id],
    );
    for (const each of found) await each.destroy();
    await second.sweep();
    await second.close();
    assert.deepEqual(await host.leaks(), [`dataset ${now}`]);
    await zfs("destroy", now);
  });

  it("has the sandboxes, snapshots and volumes that zfs receive has brought", async () => {
    const first = host.backend();
    await first.recover();
    const sandbox = await make(first);
    await outputOf(sandbox, "echo kept > file");
    await sandbox.snapshots?.take("snapshot1");
    await first.volumes.make({ id: "volume1", sizeMiB: 32 });
    await sandbox.stopping?.stop();
    await first.close();
    const stream = join(host.directory, "stream");
    await zfs("snapshot", "-r", "coppice/jails@moved");
    await sh(
      `zfs send -R coppice/jails@moved > ${stream}; zfs receive -u coppice/moved < ${stream}; zfs unmount -a || true`,
    );
    await zfs("destroy", "-R", "coppice/jails");
    await zfs("rename", "coppice/moved", "coppice/jails");
    await zfs("destroy", "-r", "coppice/jails@moved");
    assert.match(
      await zfs("get", "-H", "-o", "source", "coppice:owner", `coppice/jails/e2b-${sandbox.id}`),
      /received/,
    );
    await zfs("mount", "coppice/jails/volume-volume1");

    const second = host.backend();
    const [found, ...others] = await second.recover();
    assert.deepEqual([found?.id, others.length], [sandbox.id, 0]);
    assert.deepEqual(await second.snapshots.list(), ["snapshot1"]);
    assert.deepEqual(await second.volumes.list(), ["volume1"]);
    await found?.stopping?.start(specOf(sandbox.id), new AbortController().signal);
    assert.equal(found && (await outputOf(found, "cat file")), "kept\n");
    const copy = await second.provision(
      { ...specOf(newId()), snapshot: "snapshot1" },
      new AbortController().signal,
    );
    assert.equal(await outputOf(copy, "cat file"), "kept\n");
    for (const each of [copy, found]) await each?.destroy();
    await second.snapshots.remove("snapshot1");
    await second.volumes.remove("volume1");
    assert.deepEqual(await host.leaks(), []);
    await second.close();
  });

  it("leaves sandboxes to the next server where one cannot start", async () => {
    const first = host.backend();
    await first.recover();
    const sandbox = await make(first);
    await first.close();
    const unable = host.backend({ devfsRuleset: 201 });
    await assert.rejects(unable.check(), /devfs has no ruleset 201/);
    await unable.close();
    const failing = host.backend({ programs: { ...host.settings.programs, jls: "/bin/false" } });
    await assert.rejects(failing.recover(), /jls/);
    await failing.close();

    const next = host.backend();
    await next.check();
    const [found] = await next.recover();
    assert.equal(found?.id, sandbox.id);
    assert.equal(found && (await outputOf(found, "echo alive")), "alive\n");
    await found?.destroy();
    await next.close();
    assert.deepEqual(await host.leaks(), []);
  });

  it("loses nothing to a zfs or a jls that ends with 0 and says half of it, or something else", async () => {
    const { directory, settings } = host;
    const first = host.backend();
    await first.recover();
    const [running, stopped] = [await make(first), await make(first)];
    await stopped.snapshots?.take("snapshot2");
    await stopped.stopping?.stop();
    await first.volumes.make({ id: "volume2", sizeMiB: 32 });
    await first.close();

    const how = join(directory, "how");
    const garbled = async (program: "zfs" | "jls", isMeant: string) => {
      const path = join(directory, `garbled-${program}`);
      const script = `case "$*" in ${isMeant}) [ ! -e ${how} ] || { ${settings.programs[program]} "$@" | sh ${how}; exit 0; };; esac`;
      await writeFile(path, `#!/bin/sh\n${script}\nexec ${settings.programs[program]} "$@"\n`);
      await chmod(path, 0o755);
      return path;
    };
    const programs = {
      ...settings.programs,
      zfs: await garbled("zfs", '"get -Hp -r"*'),
      jls: await garbled("jls", '"-d "*'),
    };
    for (const filter of ["cat > /dev/null", "head -c 100", "head -c -5", "head -n -5", "echo garbage"]) {
      await writeFile(how, filter);
      const misled = host.backend({ programs });
      await assert.rejects(misled.recover(), /ended with 0, but it/, filter);
      await assert.rejects(misled.snapshots.list(), /ended with 0, but it/, filter);
      await assert.rejects(misled.volumes.list(), /ended with 0, but it/, filter);
      await misled.close();
      await rm(how);
    }

    const second = host.backend({ programs });
    const found = await second.recover();
    assert.deepEqual(found.map(({ id }) => id).toSorted(), [running.id, stopped.id].toSorted());
    for (const filter of ["cat > /dev/null", "head -n -5", "echo garbage"]) {
      await writeFile(how, filter);
      await second.sweep().catch(() => undefined);
      await rm(how);
    }
    const byId = (id: string) => found.find((each) => each.id === id);
    const [adopted, kept] = [byId(running.id), byId(stopped.id)];
    assert.equal(adopted && (await outputOf(adopted, "echo alive")), "alive\n");
    await kept?.stopping?.start(specOf(stopped.id), new AbortController().signal);
    assert.equal(kept && (await outputOf(kept, "echo again")), "again\n");
    assert.deepEqual(await second.snapshots.list(), ["snapshot2"]);
    assert.deepEqual(await second.volumes.list(), ["volume2"]);
    for (const each of found) await each.destroy();
    await second.snapshots.remove("snapshot2");
    await second.volumes.remove("volume2");
    await second.close();
    assert.deepEqual(await host.leaks(), []);
  });

  it("ends sandboxes while another dataset, which nobody needs any more, cannot be destroyed", async () => {
    const { directory, settings } = host;
    const [isSent, zfsOfHost] = [join(directory, "is-sent"), join(directory, "busy-zfs")];
    const parentId = newId();
    // As zfs(8) during a zfs send.
    const script = `[ -e ${isSent} ] && case "$*" in destroy*${parentId}) echo "cannot destroy '$2': dataset is busy" >&2; exit 1;; esac`;
    await writeFile(zfsOfHost, `#!/bin/sh\n${script}\nexec ${settings.programs.zfs} "$@"\n`, { mode: 0o755 });
    const backend = host.backend({ programs: { ...settings.programs, zfs: zfsOfHost } });
    await backend.recover();
    const signal = new AbortController().signal;
    const parent = await backend.provision(specOf(parentId), signal);
    await parent.snapshots?.take("sent");
    const clone = await backend.provision({ ...specOf(newId()), snapshot: "sent" }, signal);
    await parent.destroy();
    const other = await make(backend);
    await writeFile(isSent, "");
    await backend.snapshots.remove("sent");
    await clone.destroy();
    await other.destroy();
    assert.deepEqual(await backend.snapshots.list(), []);
    assert.deepEqual(await host.leaks(), [`dataset coppice/jails/e2b-${parentId}`]);
    await rm(isSent);
    await backend.sweep();
    assert.deepEqual(await host.leaks(), []);
    await backend.close();
  });

  it("refuses the directory of another server, whose sandboxes live on", async () => {
    const first = host.backend();
    await first.recover();
    const sandbox = await make(first);
    const second = host.backend({}, { leases: new MemoryLeases() });
    await assert.rejects(second.recover(), /another server uses the directory/);
    await second.close();
    assert.equal(await outputOf(sandbox, "echo alive"), "alive\n");
    await sandbox.destroy();
    await first.close();
    assert.deepEqual(await host.leaks(), []);
  });

  it("refuses a range whose addresses jails of another server have", async () => {
    await using connected = await openFreebsdHost({ isConnected: true });
    const first = connected.backend();
    await first.recover();
    const spec = { ...specOf(newId()), allowInternetAccess: true };
    const sandbox = await first.provision(spec, new AbortController().signal);
    await first.check();
    const directory = join(connected.directory, "e");
    const second = connected.backend({ directory }, { leases: new MemoryLeases() });
    await assert.rejects(second.check(), { message: /epair10010a belongs to another server/ });
    await second.close();
    await sandbox.destroy();
    await first.close();
    assert.deepEqual(await connected.leaks(), []);
  });

  it("has sandboxes that live on beside coppice doctor", async () => {
    const backend = host.backend();
    await backend.recover();
    const sandbox = await make(backend);
    const config = join(host.directory, "config.yaml");
    const listeners = { api: { host: "127.0.0.1", port: 0 } };
    const plugins = { "jail-freebsd": host.configuration };
    await writeFile(config, JSON.stringify({ listeners, dataDir: join(host.directory, "data"), plugins }));
    const { stdout } = await startCoppice(["doctor", config]).end;
    assert.match(stdout.toString(), /ok {4}jail-freebsd: the commands that make a sandbox work/);
    assert.equal(await outputOf(sandbox, "echo alive"), "alive\n");
    await sandbox.destroy();
    await backend.close();
    assert.deepEqual(await host.leaks(), []);
  });

  it("keeps to the quota of the parent, which alone counts what snapshots hold", async () => {
    const backend = host.backend();
    await backend.recover();
    const limits = { diskMiB: 64 };
    const sandbox = await backend.provision({ ...specOf(newId()), limits }, new AbortController().signal);
    const fill = async () => outputOf(sandbox, "head -c 30000000 /dev/urandom > file && sync && echo filled");
    await zfs("set", "quota=100M", "coppice/jails");
    let count = 0;
    for (; count < 5 && (await fill()) === "filled\n"; count++) {
      await sandbox.snapshots?.take(`full${count}`).catch(() => undefined);
    }
    assert.ok(count >= 2 && count < 5, `${count} times`);
    for (const id of await backend.snapshots.list()) await backend.snapshots.remove(id);
    await (await make(backend)).destroy();
    await sandbox.destroy();
    await zfs("set", "quota=none", "coppice/jails");
    assert.deepEqual(await host.leaks(), []);
    await backend.close();
  });

  for (const slop of ["kept back", "used up"] as const) {
    it(`stops and removes while the pool is full, its slop ${slop}`, async () => {
      await using full = await openFreebsdHost();
      const run = (...words: readonly string[]) => full.run(full.settings.programs.zfs, ...words);
      const backend = full.backend();
      await backend.recover();
      const signal = new AbortController().signal;
      const [parent, other] = [await make(backend), await make(backend)];
      for (const id of ["cloned", "single"]) await parent.snapshots?.take(id);
      const clone = await backend.provision({ ...specOf(newId()), snapshot: "cloned" }, signal);
      if (slop === "used up") await run("destroy", "coppice/slop");
      await run("create", "coppice/filler");
      const room = (await run("get", "-Hp", "-o", "value", "available", "coppice")).trim();
      await run("set", `refreservation=${room}`, "coppice/filler");

      const exhausted = { code: "resource_exhausted" };
      await assert.rejects(make(backend), exhausted);
      await assert.rejects(async () => other.snapshots?.take("third"), exhausted);
      // What it is told first has to be found by the next server.
      const stopping = Promise.resolve(other.stopping?.stop());
      if (slop === "kept back") await stopping;
      else await assert.rejects(stopping, exhausted);
      if (slop === "used up") assert.equal(await outputOf(other, "echo alive"), "alive\n");
      await parent.destroy();
      assert.deepEqual([...(await backend.snapshots.list())].toSorted(), ["cloned", "single"]);
      await backend.sweep();
      for (const id of ["cloned", "single"]) await backend.snapshots.remove(id);
      assert.deepEqual(await backend.snapshots.list(), []);
      assert.equal(await outputOf(clone, "echo alive"), "alive\n");
      for (const each of [clone, other]) await each.destroy();
      assert.deepEqual(await full.leaks(), []);
      await backend.close();
    });
  }

  it("starts no sandbox while devfs has no ruleset or pf does not filter, and says so", async () => {
    await using connected = await openFreebsdHost({ isConnected: true });
    const { directory, settings } = connected;
    const off = join(directory, "off");
    const answer = async (program: "devfs" | "pfctl", asked: string, said: string) => {
      const path = join(directory, asked.replaceAll(" ", "_"));
      const script = `[ -e ${off} ] && [ "$*" = "${asked}" ] && { echo "${said}"; exit 0; }`;
      await writeFile(path, `#!/bin/sh\n${script}\nexec ${settings.programs[program]} "$@"\n`);
      await chmod(path, 0o755);
      return { ...settings.programs, [program]: path };
    };
    for (const [programs, reason] of [
      [await answer("devfs", "rule -s 200 show", ""), /devfs has no ruleset 200/],
      [await answer("pfctl", "-s info", "Status: Disabled"), /pf is not enabled/],
      [await answer("pfctl", "-s rules", "pass all"), /pf's rules have no anchor/],
    ] as const) {
      const backend = connected.backend({ programs });
      await backend.recover();
      const sandbox = await make(backend);
      backend.health();
      await writeFile(off, "");
      await backend.sweep();
      await assert.rejects(make(backend), { message: reason });
      await sandbox.stopping?.stop();
      const start = async () => sandbox.stopping?.start(specOf(sandbox.id), new AbortController().signal);
      await assert.rejects(start(), { message: reason });
      assert.throws(() => {
        backend.health();
      }, reason);
      await rm(off);
      await start();
      assert.equal(await outputOf(sandbox, "echo again"), "again\n");
      backend.health();
      for (const each of [sandbox, await make(backend)]) await each.destroy();
      assert.deepEqual(await connected.leaks(), []);
      await backend.close();
    }
  });
});
