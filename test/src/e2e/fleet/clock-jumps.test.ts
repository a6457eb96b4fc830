import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { exchange } from "../../harness/clients/exchange.js";
import { API_KEY } from "../../harness/server/api-key.js";
import { makeFleetInstallations } from "../../harness/server/fleet-installations.js";
import { ServerProcess } from "../../harness/server/server-process.js";

const PRELOADED = new URL("../../harness/server/preloaded.js", import.meta.url).href;
const HOUR_MS = 3_600_000;

it(
  "the sandboxes of all servers of a host go on when its clock is set ahead or back",
  { timeout: 120_000 },
  async (t) => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-jumps-"));
    t.after(() => rm(directory, { recursive: true }));
    const installations = await makeFleetInstallations({
      count: 2,
      fleet: { file: join(directory, "fleet.sqlite"), lease: "6s" },
      plugins: (own) => ({ "jupyter": undefined, "local-process": { directory: join(own, "sandboxes") } }),
    });
    t.after(() => Promise.all(installations.map((each) => each.remove())));
    const servers: ServerProcess[] = [];
    t.after(() => Promise.all(servers.map((each) => each.stop())));
    for (const { configFile } of installations)
      servers.push(await ServerProcess.start(configFile, { NODE_OPTIONS: `--import=${PRELOADED}` }));
    const headers = { "x-api-key": API_KEY, "content-type": "application/json" };
    const body = JSON.stringify({ templateID: "base", timeout: (4 * HOUR_MS) / 1000 });
    const made: string[] = [];
    for (const { url } of [...servers, ...servers]) {
      const answer = await exchange(url, { method: "POST", path: "/v2/sandboxes", headers, body });
      assert.equal(answer.status, 201, answer.text);
      made.push((answer.json() as { readonly sandboxID: string }).sandboxID);
    }
    const listed = async ({ url }: ServerProcess): Promise<readonly string[]> => {
      const answer = await exchange(url, { path: "/v2/sandboxes", headers }).catch(() => undefined);
      // Until it has renewed its lease, it cuts connections and answers 503.
      if (answer === undefined || answer.status === 503) return [];
      assert.equal(answer.status, 200, answer.text);
      return (answer.json() as readonly { readonly sandboxID: string }[]).map(({ sandboxID }) => sandboxID);
    };
    for (const shiftMs of [HOUR_MS, -HOUR_MS, 0]) {
      await Promise.all(servers.map((each) => each.ask(`clock ${shiftMs}`)));
      for (const server of servers)
        await eventually("all are listed", async () => (await listed(server)).length === made.length);
    }
    for (const { printed } of servers)
      assert.deepEqual(
        printed.filter((line) => line.includes("it joins the fleet again")),
        [],
      );
  },
);
