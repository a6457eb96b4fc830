import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { Sandbox } from "e2b";
import { reasonWithoutEtcd, startEtcd } from "@coppice/plugin-fleet/testing";
import { eventually } from "@coppice/core/testing";
import { API_KEY } from "../../harness/server/api-key.js";
import { startCoppice } from "../../harness/server/coppice-command.js";
import { makeFleetInstallations } from "../../harness/server/fleet-installations.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { type Installation, namespacePlugins, ServerProcess } from "../../harness/server/server-process.js";

const LEASE_MS = 3000;
/** Nothing starts it again, so a number that grows on is its own. No reader finds the file empty. */
const COUNTING =
  "i=0; while :; do i=$((i+1)); echo $i > /home/user/next; mv /home/user/next /home/user/count; sleep 0.05; done";

const skip = reasonWithoutEtcd() || missingForNamespaces();

describe(
  "servers of a fleet that are stopped and started one after the other",
  { skip, timeout: 240_000 },
  () => {
    let installations: readonly Installation[];
    /** Undefined while it is stopped. */
    const servers: (ServerProcess | undefined)[] = [];
    const undo = new AsyncDisposableStack();
    /** By server, its sandboxes with the program. */
    const made: { readonly running: string; readonly paused: string }[] = [];

    const at = (index: number): void => pointSdkAt(servers[index]?.url ?? "");
    const fleet = async (...words: readonly string[]): Promise<string> => {
      const [action = "", ...rest] = words;
      const { stdout } = await startCoppice(["fleet", action, installations[0]?.configFile ?? "", ...rest])
        .end;
      return stdout.toString();
    };
    /** By server: its state, and how many sandboxes it has. */
    const status = async (): Promise<readonly string[]> => {
      const rows = JSON.parse(await fleet("status", "--json")) as readonly Record<
        "server" | "state" | "sandboxes" | "lost",
        string
      >[];
      return rows.map(({ server, state, sandboxes, lost }) => `${server} ${state} ${sandboxes} ${lost}`);
    };
    const ask = async (index: number, path: string): Promise<Response> =>
      fetch(`${servers[index]?.url}${path}`, { headers: { "x-api-key": API_KEY } });
    const countOf = async (sandbox: Sandbox): Promise<number> => Number(await sandbox.files.read("count"));
    const start = async (index: number): Promise<void> => {
      servers[index] = await ServerProcess.start(installations[index]?.configFile ?? "");
    };

    before(async () => {
      const etcd = undo.use(await startEtcd());
      installations = await makeFleetInstallations({
        count: 2,
        fleet: { etcd: { endpoints: etcd.endpoints }, lease: `${LEASE_MS}ms` },
        config: { sandboxes: { defaultBackend: "linux-namespaces", onShutdown: "keep" } },
        plugins: (directory) => ({ ...namespacePlugins(directory), "local-process": undefined }),
      });
      for (const installation of installations) undo.defer(() => installation.remove());
      for (const index of installations.keys()) {
        await start(index);
        undo.defer(async () => void (await servers[index]?.stop()));
      }
      for (const index of installations.keys()) {
        at(index);
        await fleet("cordon", `node${1 - index}`);
        const [running, paused] = await Promise.all([Sandbox.create(), Sandbox.create()]);
        // They would outlive their servers.
        undo.defer(async () => {
          if (servers[index] === undefined) await start(index);
          at(index);
          for (const { sandboxId } of [running, paused]) await Sandbox.kill(sandboxId);
        });
        await fleet("uncordon", `node${1 - index}`);
        for (const sandbox of [running, paused])
          await sandbox.commands.run(COUNTING, { background: true, timeoutMs: 0 });
        await eventually("it counts", () => countOf(paused).catch(() => 0));
        await paused.pause();
        made.push({ running: running.sandboxId, paused: paused.sandboxId });
      }
    });
    after(() => undo.disposeAsync());

    for (const index of [0, 1]) {
      const other = 1 - index;
      const states = (own: string): readonly string[] =>
        [`node${index} ${own} 2 0`, `node${other} member 2 0`].toSorted();

      it(`have the sandboxes of node${index} as before, running and paused, after longer than a lease`, async () => {
        const { running: id, paused } = made[index] ?? { running: "", paused: "" };
        assert.deepEqual(await status(), states("member"));
        at(other);
        const sandbox = await Sandbox.connect(id);
        const processes = await sandbox.commands.list();
        const pid = processes.find(({ args }) => args.includes(COUNTING))?.pid ?? 0;
        const streamed = await sandbox.commands.connect(pid);
        const ended = streamed.wait().then(() => "ended", String);
        const before = await countOf(sandbox);

        const stopping = servers[index]?.stop();
        servers[index] = undefined;
        assert.deepEqual(await stopping, { code: 0, signal: null });
        assert.match(await ended, /\[unavailable\]/);
        assert.deepEqual(await status(), states("away"));
        await pause(LEASE_MS * 1.5);
        for (const away of [id, paused]) assert.equal((await ask(other, `/sandboxes/${away}`)).status, 503);
        const meanwhile = await Sandbox.create();
        await meanwhile.kill();
        await start(index);

        assert.deepEqual(await status(), states("member"));
        at(other);
        assert.ok((await countOf(sandbox)) > before);
        assert.ok(await eventually("it goes on", async () => (await countOf(sandbox)) > before + 100));
        assert.equal((await Sandbox.getInfo(paused)).state, "paused");
        const resumed = await Sandbox.connect(paused);
        const stoodAt = await countOf(resumed);
        await eventually("it goes on, too", async () => (await countOf(resumed)) > stoodAt);
        const again = await sandbox.commands.connect(pid);
        assert.equal(await again.kill(), true);
      });
    }

    it("have told of no end", async () => {
      for (const { running, paused } of made)
        for (const id of [running, paused]) {
          const events = await ask(0, `/events/sandboxes/${id}?types=sandbox.lifecycle.killed`);
          assert.deepEqual(await events.json(), []);
        }
    });
  },
);
