import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Cluster, reasonWithoutEtcd, startEtcd } from "@coppice/plugin-fleet/testing";
import { eventually } from "@coppice/core/testing";
import { API_KEY } from "../../harness/server/api-key.js";
import { makeFleetInstallations } from "../../harness/server/fleet-installations.js";
import { type Installation, ServerProcess } from "../../harness/server/server-process.js";

const LEASE_MS = 2000;
const MOST = 6;
const HEADERS = { "x-api-key": API_KEY, "content-type": "application/json" };

function cases(storeOf: () => Record<string, unknown>): void {
  let installations: readonly Installation[] = [];
  const servers: ServerProcess[] = [];

  before(async () => {
    installations = await makeFleetInstallations({
      count: 3,
      fleet: { lease: `${LEASE_MS}ms`, restart: "20s", ...storeOf() },
      // One of them is warm: it counts once it is handed out.
      config: { sandboxes: { templates: { base: { pool: { min: 1 } } } } },
      plugins: () => ({ access: { apiKeys: [API_KEY], quotas: { everybody: { sandboxes: MOST } } } }),
    });
    for (const { configFile } of installations) servers.push(await ServerProcess.start(configFile));
  });
  after(async () => {
    for (const server of servers) await server.stop();
    for (const installation of installations) await installation.remove();
  });

  const urlOf = (index: number): string => servers[index]?.url ?? "";
  /** @returns the id, or status and message of the refusal */
  const create = async (index: number): Promise<string> => {
    const answer = await fetch(`${urlOf(index)}/sandboxes`, {
      method: "POST",
      headers: HEADERS,
      body: JSON.stringify({ templateID: "base" }),
    });
    const body = (await answer.json()) as { readonly sandboxID?: string; readonly message?: string };
    return body.sandboxID ?? `${answer.status} ${body.message}`;
  };
  const kill = async (index: number, id: string): Promise<void> => {
    const { status } = await fetch(`${urlOf(index)}/sandboxes/${id}`, { method: "DELETE", headers: HEADERS });
    assert.equal(status, 204);
  };
  const list = async (index: number): Promise<readonly string[]> => {
    const answer = await fetch(`${urlOf(index)}/v2/sandboxes`, { headers: HEADERS });
    return ((await answer.json()) as readonly { readonly sandboxID: string }[]).map(
      ({ sandboxID }) => sandboxID,
    );
  };
  const isMade = (answer: string): boolean => /^[a-z0-9]+$/.test(answer);
  const FULL = new RegExp(`^429 .*maximum number of concurrent E2B sandboxes \\(${MOST}\\)`);

  it("sixteen creations at once, at all servers, make as many as the quota has, and the others say so", async () => {
    const answers = await Promise.all(Array.from({ length: 16 }, (_, index) => create(index % 3)));
    for (const answer of answers) if (!isMade(answer)) assert.match(answer, FULL);
    const made = answers.filter(isMade);
    assert.equal(made.length, MOST, answers.join("\n"));
    assert.deepEqual((await list(1)).toSorted(), made.toSorted());
  });

  it("one that ends makes room for one, at once and at every server", async () => {
    for (const index of [0, 1, 2]) {
      const [id] = await list(index);
      await kill(index, id ?? "");
      assert.ok(isMade(await create((index + 1) % 3)));
      assert.match(await create((index + 2) % 3), FULL);
    }
  });

  it("a lost server gives back what its sandboxes took, once", async () => {
    for (const id of await list(0)) await kill(0, id);
    // Of servers that have nothing, the one that is asked keeps the sandbox.
    for (let made = 0; made < MOST; made += 1) assert.ok(isMade(await create((made + 2) % 3)));
    const before = await list(0);
    servers[2]?.signal("SIGKILL");
    await servers[2]?.ended;
    const kept = await eventually("its sandboxes are lost", async () => {
      const found = await list(0);
      return found.length < before.length && isMade(await create(0)) ? found : undefined;
    });
    const answers = await Promise.all(
      Array.from({ length: 8 }, async (_, index) => {
        let answer = await create(index % 2);
        // The other one may choose the lost server until its lease has ended.
        while (answer.startsWith("503")) answer = await create(index % 2);
        return answer;
      }),
    );
    assert.equal(answers.filter(isMade).length, MOST - kept.length - 1, answers.join("\n"));
    for (const answer of answers) if (!isMade(answer)) assert.match(answer, FULL);
    servers[2] = await ServerProcess.start(installations[2]?.configFile ?? "");
    for (const index of [0, 1, 2]) assert.match(await create(index), FULL);
    const [id] = await list(2);
    await kill(2, id ?? "");
    const again = await Promise.all([0, 1, 2].map(create));
    assert.equal(again.filter(isMade).length, 1, again.join("\n"));
  });
}

describe("quotas of a fleet on etcd", { skip: reasonWithoutEtcd(), timeout: 240_000 }, () => {
  let etcd: Cluster;
  before(async () => {
    etcd = await startEtcd();
  });
  after(() => etcd[Symbol.asyncDispose]());
  cases(() => ({ etcd: { endpoints: etcd.endpoints } }));
});

describe("quotas of a fleet on an SQLite file", { timeout: 240_000 }, () => {
  let directory: string;
  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
  });
  after(() => rm(directory, { recursive: true }));
  cases(() => ({ file: join(directory, "fleet.sqlite") }));
});
