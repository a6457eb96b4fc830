import assert from "node:assert/strict";
import { access, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { ALL_TRAFFIC, type Sandbox, type SandboxBackend } from "@coppice/core/backend";
import { eventually } from "@coppice/core/testing";
import {
  type FreebsdHost,
  openFreebsdHost,
  reasonWithoutFreebsdHost,
} from "../../harness/freebsd/freebsd-host.js";
import { newId } from "../../harness/freebsd/jail-faults.js";
import { hostTitle, NETWORK_HOSTS } from "../../harness/freebsd/network-hosts.js";
import { reachesOut } from "../../harness/freebsd/reaches-out.js";

const skip = reasonWithoutFreebsdHost() ?? false;

async function make(backend: SandboxBackend, allowInternetAccess = false): Promise<Sandbox> {
  const spec = { id: newId(), template: "base", limits: {}, allowInternetAccess };
  return backend.provision(spec, new AbortController().signal);
}

async function outputOf(sandbox: Sandbox, script: string): Promise<string> {
  const env = { PATH: "/usr/bin:/bin" };
  const started = await sandbox.spawn({ path: "/bin/sh", args: ["-c", script], env, input: "none" });
  const pieces: Uint8Array[] = [];
  for await (const { data } of started.output) pieces.push(data);
  return Buffer.concat(pieces).toString();
}

describe("jail-freebsd, after its server ended", { skip }, () => {
  let host: FreebsdHost;
  const zfs = (...words: readonly string[]) => host.run(host.settings.programs.zfs, ...words);

  before(async () => {
    host = await openFreebsdHost();
  });
  after(() => host[Symbol.asyncDispose]());

  it("takes over sandboxes with what runs in them", async () => {
    const first = host.backend();
    const sandbox = await make(first);
    await outputOf(sandbox, "echo kept > file");
    const env = { PATH: "/usr/bin:/bin" };
    const args = ["-c", "read line; echo got $line; exit 7"];
    const running = await sandbox.spawn({ path: "/bin/sh", args, env, label: "mine" });
    await first.close();

    const second = host.backend();
    const [found, ...others] = await second.recover();
    assert.ok(found);
    assert.deepEqual([found.id, others.length], [sandbox.id, 0]);
    assert.equal(await outputOf(found, "cat file"), "kept\n");
    const processes = await found.adoption?.processes();
    const adopted = processes?.find(({ pid }) => pid === running.pid);
    assert.equal(adopted?.label, "mine");
    await adopted?.write(Buffer.from("this\n"));
    assert.deepEqual(await adopted?.exit, { code: 7 });
    await found.destroy();
    assert.deepEqual(await host.leaks(), []);
    await second.close();
  });

  it("starts a helper for one whose helper is gone, and ends one that does not answer", async () => {
    const first = host.backend();
    const [orphan, stuck] = [await make(first), await make(first)];
    const signal = (name: string, { id }: Sandbox) =>
      host.run("/usr/bin/pkill", `-${name}`, "-f", `coppice-agent listen 3 .* e2b-${id} `);
    await first.close();
    await signal("KILL", orphan);

    const second = host.backend();
    const found = await second.recover();
    const mended = found.find(({ id }) => id === orphan.id);
    assert.ok(mended);
    assert.equal(await outputOf(mended, "echo again"), "again\n");
    await signal("STOP", stuck);
    for (const sandbox of found) await sandbox.destroy();
    assert.deepEqual(await host.leaks(), []);
    await second.close();
  });

  it("keeps sandboxes that are stopped, also where the server ended while it stopped or started one", async () => {
    const spec = (id: string) => ({ id, template: "base", limits: {}, allowInternetAccess: false });
    const first = host.backend();
    const [stopped, halfStopped] = [await make(first), await make(first)];
    for (const sandbox of [stopped, halfStopped]) await outputOf(sandbox, "echo kept > file");
    await stopped.stopping?.stop();
    await first.close();
    // A stop that ended after this first step looks so, and a start that ended before its last step.
    await zfs("set", "coppice:state=stopped", `coppice/jails/e2b-${halfStopped.id}`);

    const second = host.backend();
    const found = await second.recover();
    assert.deepEqual(found.map(({ id }) => id).toSorted(), [stopped.id, halfStopped.id].toSorted());
    for (const sandbox of found) {
      await assert.rejects(outputOf(sandbox, "true"), { code: "unavailable" });
      assert.deepEqual(await sandbox.adoption?.processes(), []);
      await sandbox.stopping?.start(spec(sandbox.id), new AbortController().signal);
      assert.equal(await outputOf(sandbox, "cat file"), "kept\n");
    }
    await found[0]?.stopping?.stop();
    for (const sandbox of found) await sandbox.destroy();
    assert.deepEqual(await host.leaks(), []);
    await second.close();
  });

  it("starts a sandbox again whose removed jail the kernel still keeps", async () => {
    const backend = host.backend();
    await backend.recover();
    const sandbox = await make(backend);
    const spec = { id: sandbox.id, template: "base", limits: {}, allowInternetAccess: false };
    for (let round = 0; round < 3; round++) {
      await sandbox.stopping?.stop();
      await sandbox.stopping?.start(spec, new AbortController().signal);
    }
    assert.equal(await outputOf(sandbox, "echo again"), "again\n");
    await sandbox.destroy();
    assert.deepEqual(await host.leaks(), []);
    await backend.close();
  });

  it("has the configured agent in jails, too", async () => {
    const backend = host.backend();
    await backend.check();
    const inside = join(host.settings.directory, "programs", "coppice-agent");
    assert.deepEqual(await readFile(inside), await readFile(host.settings.agent ?? ""));
    await backend.close();
  });

  it("removes what was not finished, and nothing that it did not make", async () => {
    const backend = host.backend();
    await backend.check();
    const owner = "coppice:owner=somebody-else";
    const foreign = [
      "coppice/jails/e2b-foreign1",
      "coppice/jails/e2b-foreign2",
      "coppice/jails/volumes",
      "coppice/e2b-outside",
    ];
    await zfs(
      "clone",
      "-o",
      owner,
      "-o",
      "coppice:state=creating",
      "coppice/jails/_template@base",
      foreign[0] ?? "",
    );
    for (const name of foreign.slice(1)) await zfs("create", name);
    await zfs("snapshot", "coppice/jails/e2b-foreign2@theirs");
    const before = await zfs("list", "-H", "-o", "name", "-t", "filesystem,snapshot", "-r", "coppice");

    const whole = await make(backend);
    const unfinished = await make(backend);
    const [name, jail] = [`coppice/jails/e2b-${unfinished.id}`, `e2b-${unfinished.id}`];
    await zfs("set", "coppice:state=creating", name);
    const dead = await make(backend);
    await backend.close();
    const conf = join(host.settings.directory, "conf", `e2b-${dead.id}.conf`);
    await host.run(host.settings.programs.jail, "-q", "-R", `e2b-${dead.id}`);
    await host.run("/bin/rm", conf);

    const next = host.backend();
    const recovered = await next.recover();
    assert.deepEqual(
      recovered.map(({ id }) => id),
      [whole.id],
    );
    assert.doesNotMatch(await host.run(host.settings.programs.jls, "name"), new RegExp(jail));
    for (const sandbox of recovered) await sandbox.destroy();
    const after = await zfs("list", "-H", "-o", "name", "-t", "filesystem,snapshot", "-r", "coppice");
    assert.equal(after, before);
    const theirs = { id: "foreign1", template: "base", limits: {}, allowInternetAccess: false };
    await assert.rejects(next.provision(theirs, new AbortController().signal), { code: "already_exists" });
    assert.equal(await zfs("list", "-H", "-o", "name", "-t", "filesystem,snapshot", "-r", "coppice"), before);
    await next.close();
  });

  it("sweeps away what a failure has left, and nothing that somebody has or is making", async () => {
    const broken = join(host.directory, "broken");
    const programs = { ...host.settings.programs };
    for (const name of ["jail", "umount", "mount"] as const) {
      programs[name] = join(host.directory, `breakable-${name}`);
      const script = `[ ! -e ${broken} ] || exit 1\nexec ${host.settings.programs[name]} "$@"`;
      await writeFile(programs[name], `#!/bin/sh\n${script}\n`, { mode: 0o755 });
    }
    const backend = host.backend({ programs });
    await backend.sweep();
    await backend.recover();
    const kept = await make(backend);
    await writeFile(broken, "");
    await assert.rejects(make(backend));
    await rm(broken);
    const names = async () => (await zfs("list", "-H", "-o", "name")).match(/e2b-test\w+/g) ?? [];
    assert.equal((await names()).length, 2);
    const making = make(backend);
    for (let round = 0; round < 3; round++) await backend.sweep();
    const made = await making;
    assert.deepEqual((await names()).toSorted(), [`e2b-${kept.id}`, `e2b-${made.id}`].toSorted());
    assert.equal(await outputOf(kept, "echo lives"), "lives\n");
    for (const sandbox of [kept, made]) await sandbox.destroy();
    await backend.close();
  });
});

describe("connected sandboxes of jail-freebsd, after their server ended", { skip }, () => {
  it("are alone, though the server was killed while commands of the host were running", async () => {
    await using host = await openFreebsdHost({ isConnected: true });
    const { directory, settings } = host;
    const slow = join(directory, "slow");
    // What each of them makes is in no list of remains that a sweep looks through.
    for (const [program, isSlow] of [
      ["ifconfig", "*create"],
      ["rctl", "-a*"],
    ] as const) {
      const path = join(directory, `slow-${program}`);
      const real = settings.programs[program];
      const script = `case "$*" in ${isSlow}) [ ! -e ${slow} ] || { mv ${slow} ${slow}-now; sleep 2; };; esac`;
      await writeFile(path, `#!/bin/sh\n${script}\nexec ${real} "$@"\n`, { mode: 0o755 });
      const first = host.backend({ programs: { ...settings.programs, [program]: path } });
      await first.recover();
      const kept = await make(first, true);
      await writeFile(slow, "");
      const making = make(first, true).catch(() => undefined);
      await eventually("a command is running", async () =>
        access(`${slow}-now`).then(
          () => true,
          () => false,
        ),
      );
      // As if killed: with a sandbox that lives, the agent of the host goes on, and its commands too.
      await first.close();
      await rm(`${slow}-now`);

      const second = host.backend();
      const [found, ...others] = await second.recover();
      assert.deepEqual([found?.id, others.length], [kept.id, 0]);
      const running = await host.run("/usr/bin/ps", "-e", "-o", "args=");
      assert.ok(!running.includes(path), `${program} still runs`);
      assert.ok(found && (await reachesOut(found)));
      await found.destroy();
      assert.deepEqual(await host.leaks(), []);
      await second.close();
      void making;
    }
  });

  for (const options of NETWORK_HOSTS) {
    it(`are taken over with their rules, and the dead ones removed: ${hostTitle(options)}`, async () => {
      await using host = await openFreebsdHost({ isConnected: true, ...options });
      const first = host.backend();
      await first.recover();
      const [open, closed, dead] = [
        await make(first, true),
        await make(first, true),
        await make(first, true),
      ];
      await closed.networking?.restrict({ allowOut: [], denyOut: [ALL_TRAFFIC] });
      await first.close();
      await host.run(host.settings.programs.jail, "-q", "-R", `e2b-${dead.id}`);

      const second = host.backend();
      const found = await second.recover();
      assert.deepEqual(found.map(({ id }) => id).toSorted(), [open.id, closed.id].toSorted());
      assert.deepEqual(
        (await host.leaks()).filter((leak) => leak.includes(dead.id)),
        [],
      );
      for (const sandbox of found) assert.equal(await reachesOut(sandbox), sandbox.id === open.id);
      const adopted = found.find(({ id }) => id === closed.id);
      await adopted?.networking?.restrict({ allowOut: [], denyOut: [] });
      assert.ok(adopted && (await reachesOut(adopted)));
      for (const sandbox of found) await sandbox.destroy();
      assert.deepEqual(await host.leaks(), []);
      await second.close();
    });
  }
});
