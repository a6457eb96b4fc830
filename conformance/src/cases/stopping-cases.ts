import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { ErrorCode, Sandbox } from "@coppice/core/backend";
import type { ConformanceCase } from "../kit/conformance-case.js";
import { FACTS } from "../kit/facts.js";

const REFUSALS: readonly ErrorCode[] = ["unavailable", "not_found", "failed_precondition"];

/** Promises of a backend with the facet `stopping`. */
export const stoppingCases: readonly ConformanceCase[] = [
  {
    name: "a stopped sandbox has no processes, keeps its files, and starts again with them",
    group: "facets",
    needs: ["stopping"],
    async run(context) {
      const { sandbox } = context;
      const script =
        "echo kept > file; chmod 640 file; mkdir -p deep/er; ln -s ../file deep/link; rm -f .profile";
      await context.succeed(script);
      const running = await context.start("sleep 300");
      await stoppingOf(sandbox).stop();
      const { signal } = await context.within(2_000, "the exit is known", running.exit);
      assert.equal(signal, "SIGKILL");
      await context.refuses(() => context.start("true"), REFUSALS);
      const stats = await sandbox.stats();
      assert.ok(stats.diskTotalBytes > 0, "a stopped sandbox tells no size of its disk");
      await context.startAnew(sandbox);
      assert.equal(
        await context.succeed(`${FACTS}; facts file | cut -d ' ' -f 1; cat deep/link; test ! -e .profile`),
        "640\nkept\n",
      );
      assert.equal((await context.read(context.home("file"))).toString(), "kept\n");
      await context.write(context.home("file"), "changed");
      assert.equal(await context.succeed("cat file"), "changed");
    },
  },
  {
    name: "stopping and starting can be repeated, of a paused sandbox too",
    group: "facets",
    needs: ["stopping"],
    async run(context) {
      const { sandbox } = context;
      const other = await context.provision();
      const bystander = await context.start("sleep 300", { in: other });
      for (let round = 0; round < 3; round++) {
        await context.succeed(`echo ${round} >> rounds`);
        await sandbox.pausing?.pause();
        await Promise.all([stoppingOf(sandbox).stop(), stoppingOf(sandbox).stop()]);
        await stoppingOf(sandbox).stop();
        await context.startAnew(sandbox);
        await context.startAnew(sandbox);
      }
      assert.equal(await context.succeed("cat rounds"), "0\n1\n2\n");
      assert.equal(await context.succeed("echo awake", { in: other }), "awake\n");
      await bystander.kill("SIGKILL");
      assert.deepEqual(await bystander.exit, { signal: "SIGKILL" });
    },
  },
  {
    name: "an aborted start leaves the sandbox stopped",
    group: "facets",
    needs: ["stopping"],
    async run(context) {
      const { sandbox } = context;
      await context.succeed("echo kept > file");
      await stoppingOf(sandbox).stop();
      const spec = { id: sandbox.id, template: "base", limits: {}, allowInternetAccess: true };
      for (const atMs of [0, 1, 5]) {
        const givingUp = new AbortController();
        const started = stoppingOf(sandbox).start(
          { ...spec, ...context.subject.specification },
          givingUp.signal,
        );
        if (atMs === 0) givingUp.abort(new Error("given up"));
        else setTimeout(() => givingUp.abort(new Error("given up")), atMs);
        await context.within(5_000, "it is started, or not", Promise.allSettled([started]));
        await stoppingOf(sandbox).stop();
      }
      await context.startAnew(sandbox);
      assert.equal(await context.succeed("cat file"), "kept\n");
    },
  },
  {
    name: "a sandbox can be destroyed when it is stopped, and while it is being stopped or started",
    group: "facets",
    needs: ["stopping"],
    async run(context) {
      await stoppingOf(context.sandbox).stop();
      await context.within(5_000, "it is destroyed", context.sandbox.destroy());
      await context.refuses(() => context.startAnew(context.sandbox), REFUSALS);
      for (const delayMs of [0, 2, 10]) {
        const sandbox = await context.provision();
        await context.start("sleep 300", { in: sandbox });
        const stopping = stoppingOf(sandbox).stop();
        if (delayMs > 0) await stopping;
        const changing = delayMs > 0 ? context.startAnew(sandbox) : stopping;
        await sleep(delayMs);
        await context.within(5_000, "it is destroyed", Promise.allSettled([changing, sandbox.destroy()]));
        await sandbox.destroy();
      }
    },
  },
  {
    name: "a snapshot of a stopped sandbox has its files",
    group: "facets",
    needs: ["stopping", "snapshots"],
    async run(context) {
      const { backend, sandbox } = context;
      await context.succeed("echo kept > file");
      await stoppingOf(sandbox).stop();
      const snapshot = `conform${randomBytes(8).toString("hex")}`;
      await sandbox.snapshots?.take(snapshot);
      try {
        const fork = await context.provision({ snapshot });
        assert.equal(await context.succeed("cat file", { in: fork }), "kept\n");
        await context.startAnew(sandbox);
        assert.equal(await context.succeed("cat file"), "kept\n");
        await fork.destroy();
      } finally {
        await backend.snapshots?.remove(snapshot);
      }
    },
  },
  {
    name: "a sandbox that starts again has its volumes",
    group: "facets",
    needs: ["stopping", "volumes"],
    async run(context) {
      const volume = await context.volume();
      const sandbox = await context.provision({ mounts: [{ volume, path: "/data", readOnly: false }] });
      await context.succeed("echo shared > /data/file", { in: sandbox });
      await stoppingOf(sandbox).stop();
      await context.startAnew(sandbox);
      assert.equal(await context.succeed("cat /data/file", { in: sandbox }), "shared\n");
    },
  },
];

function stoppingOf(sandbox: Sandbox): NonNullable<Sandbox["stopping"]> {
  const { stopping } = sandbox;
  assert.ok(stopping, "the sandbox has no stopping");
  return stopping;
}
