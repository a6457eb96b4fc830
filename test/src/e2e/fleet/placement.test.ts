import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, beforeEach, describe, it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { Sandbox } from "e2b";
import { API_KEY } from "../../harness/server/api-key.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { type Fleet, startFleet } from "../../harness/server/start-fleet.js";

describe("new sandboxes of a fleet", { timeout: 120_000 }, () => {
  let directory: string;
  let fleet: Fleet;

  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
    fleet = await startFleet({
      count: 3,
      store: { file: join(directory, "fleet.sqlite") },
      server: { sandboxes: { maximum: 4, templates: { base: {} } } },
    });
  });
  after(async () => {
    await fleet[Symbol.asyncDispose]();
    await rm(directory, { recursive: true });
  });
  beforeEach(async () => {
    for (const { sandboxes } of fleet.servers)
      for (const { record } of sandboxes.list()) await sandboxes.kill(record.id);
  });

  const counts = (): readonly number[] => fleet.servers.map(({ sandboxes }) => sandboxes.list().length);
  const urlOf = (index: number): string => fleet.servers[index]?.url ?? "";

  it("come to servers that can have them, whichever is asked, until none can", async () => {
    pointSdkAt(urlOf(0));
    for (let made = 0; made < 12; made += 1) await Sandbox.create();
    assert.deepEqual(counts(), [4, 4, 4]);
    await assert.rejects(Sandbox.create(), /maximum number of concurrent/);
  });

  it("are the same one for all requests with one Idempotency-Key, whichever servers they ask", async () => {
    const create = async (index: number): Promise<string> => {
      const answer = await fetch(`${urlOf(index)}/sandboxes`, {
        method: "POST",
        headers: { "x-api-key": API_KEY, "content-type": "application/json", "idempotency-key": "once" },
        body: JSON.stringify({ templateID: "base" }),
      });
      const body = (await answer.json()) as { readonly sandboxID?: string; readonly message?: string };
      return body.sandboxID ?? `${answer.status} ${body.message}`;
    };
    const ids = await Promise.all([0, 1, 2, 0, 1, 2].map(create));
    assert.match(ids[0] ?? "", /^[a-z0-9]+$/);
    assert.equal(new Set(ids).size, 1, ids.join());
    assert.equal(
      counts().reduce((sum, count) => sum + count),
      1,
    );
  });

  it("are listed by every server, newest first, page by page, each once", async () => {
    pointSdkAt(urlOf(0));
    const made: string[] = [];
    for (let index = 0; index < 9; index += 1) made.unshift((await Sandbox.create()).sandboxId);
    assert.ok(counts().filter((count) => count > 0).length > 1, `all are on one server: ${counts().join()}`);
    for (const index of [0, 1, 2]) {
      pointSdkAt(urlOf(index));
      const listed: string[] = [];
      const pages = Sandbox.list({ limit: 4 });
      while (pages.hasNext) listed.push(...(await pages.nextItems()).map(({ sandboxId }) => sandboxId));
      assert.deepEqual(listed, made);
    }
    const { headers } = await fetch(`${urlOf(1)}/v2/sandboxes`, { headers: { "x-api-key": API_KEY } });
    assert.equal(headers.get("x-total-running"), "9");
    const v1 = await fetch(`${urlOf(2)}/v1/sandboxes`, { headers: { "x-api-key": API_KEY } });
    assert.equal(((await v1.json()) as readonly unknown[]).length, 9);
  });

  it("do not come to a server that is cordoned", async () => {
    const cordon = async (word: "cordon" | "uncordon"): Promise<void> => {
      for (const node of ["node0", "node2"]) await fleet.coppice(word, node);
    };
    await cordon("cordon");
    pointSdkAt(urlOf(0));
    // One creation could come to the right server by chance.
    await eventually("both cordons are known", async () => {
      const made = [];
      for (let count = 0; count < 4; count += 1) made.push(await Sandbox.create());
      const areAtOne = counts().join() === "0,4,0";
      for (const sandbox of made) await sandbox.kill();
      return areAtOne;
    });
    for (let made = 0; made < 4; made += 1) await Sandbox.create();
    assert.deepEqual(counts(), [0, 4, 0]);
    // They could, and it is full.
    await assert.rejects(Sandbox.create(), /maximum number of concurrent/);
    await assert.rejects(Sandbox.create("missing"), /template 'missing' not found/);
    assert.deepEqual(counts(), [0, 4, 0]);
    await fleet.coppice("cordon", "node1");
    await eventually("no server gets sandboxes", () =>
      Sandbox.create().then(
        () => false,
        (error: Error) => error.message.includes("no other one can have this one"),
      ),
    );
    assert.deepEqual(counts(), [0, 4, 0]);
    await fleet.coppice("uncordon", "node1");
    await cordon("uncordon");
  });
});
