import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import type { Sandbox, SandboxSpec } from "@coppice/core/backend";
import { reasonWithoutFreebsdHost } from "../../harness/freebsd/freebsd-host.js";
import { FaultScene, type FaultyAct, FaultyHost, newId } from "../../harness/freebsd/jail-faults.js";

const skip = reasonWithoutFreebsdHost() ?? false;
const alone = { allowInternetAccess: false };

/** Changes of a running sandbox. */
const changes: FaultyAct<Sandbox> = {
  prepare: (scene) => scene.make(alone),
  act: async (_, sandbox) => {
    await sandbox.resizing?.resize({ memoryMiB: 256, diskMiB: 512, processes: 64 });
    await sandbox.pausing?.pause();
    await sandbox.pausing?.resume();
  },
};

interface Forked {
  readonly parent: Sandbox;
  readonly snapshot: string;
  readonly fork: Sandbox;
}

/** A sandbox that another one was forked from, which outlives it. */
const forks: FaultyAct<Forked> = {
  prepare: async (scene) => {
    const parent = await scene.make(alone);
    const snapshot = newId();
    await parent.snapshots?.take(snapshot);
    return { parent, snapshot, fork: await scene.make({ ...alone, snapshot }) };
  },
  act: async (scene, { parent, snapshot, fork }) => {
    await parent.snapshots?.take(newId());
    await parent.destroy();
    await scene.backend.snapshots.remove(snapshot);
    await fork.destroy();
  },
};

const volumes: FaultyAct<undefined> = {
  act: async (scene: FaultScene) => {
    const id = newId();
    await scene.backend.volumes.make({ id, sizeMiB: 64 });
    const mounts = [{ volume: id, path: "/mnt/data/deep", readOnly: false }];
    const sandbox = await scene.make({ ...alone, mounts });
    await sandbox.destroy();
    await scene.backend.volumes.remove(id);
  },
};

/** A sandbox that stops and begins anew. */
const stops: FaultyAct<Sandbox> = {
  prepare: (scene) => scene.make(alone),
  act: async (_, sandbox) => {
    await sandbox.stopping?.stop();
    await sandbox.stopping?.start(specOf(sandbox), new AbortController().signal);
  },
};

function specOf({ id }: Sandbox): SandboxSpec {
  return { id, template: "base", limits: {}, ...alone };
}

describe("what a jail can do beside running, on a host that fails", { skip }, () => {
  let host: FaultyHost;

  before(async () => {
    host = await FaultyHost.open();
  });
  after(() => host[Symbol.asyncDispose]());

  it("leaves nothing of a sandbox whose limits change, or that pauses", async () => {
    assert.ok((await host.failAtEach("dead", changes)) >= 6);
    await host.checkDecoys();
  });

  it("leaves nothing of a sandbox that stops and begins anew", async () => {
    for (const fault of ["dead", "once"] as const) assert.ok((await host.failAtEach(fault, stops)) >= 15);
    await host.checkDecoys();
  });

  it("keeps a stopped sandbox, whichever command fails when the next server looks for it", async () => {
    const first = await host.serve();
    const scene = new FaultScene(first);
    const { id, stopping } = await scene.make(alone);
    await stopping?.stop();
    await first.close();
    for (let number = 0, hasFailed = true; hasFailed; number++) {
      await host.failing.arm("once", number);
      const failing = host.host.backend(host.failing.settings);
      await failing.recover().catch(() => undefined);
      await failing.close();
      hasFailed = await host.failing.heal();
    }
    const last = host.host.backend();
    const found = await last.recover();
    assert.deepEqual(
      found.map((sandbox) => sandbox.id),
      [id],
    );
    await new FaultScene(last).end(found);
    await last.close();
    await host.checkDecoys();
  });

  it("leaves nothing of a snapshot, a fork, and a parent that went first", async () => {
    assert.ok((await host.failAtEach("dead", forks)) >= 20);
    await host.checkDecoys();
  });

  it("leaves nothing of a volume, in a sandbox or not", async () => {
    assert.ok((await host.failAtEach("dead", volumes)) >= 18);
    await host.checkDecoys();
  });
});
