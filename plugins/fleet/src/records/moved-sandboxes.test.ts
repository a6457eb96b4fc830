import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, it } from "node:test";
import { systemClock } from "@coppice/core";
import { eventually, fakeClock, type FakeClock } from "@coppice/core/testing";
import { fleetConfig } from "../fleet-config.js";
import type { FleetStore } from "../store/fleet-store.js";
import { openStore } from "../store/open-store.js";
import { SANDBOXES, sandboxText } from "./fleet-sandbox.js";
import { MovedSandboxes } from "./moved-sandboxes.js";

const MEMBER = { key: "nodes/a" };
const CLAIM_MS = 10_000;

describe("a moved sandbox and the one that takes its place", () => {
  let directory: string;
  let store: FleetStore;
  let clock: FakeClock;
  let killed: string[];
  let looked: number;
  /** Called once, before the next commit. */
  let between: (() => Promise<void>) | undefined;
  let moved: MovedSandboxes;

  const put = (id: string, node: string, tenant = "me") => {
    const value = sandboxText({ node, tenant, template: "base", backend: "memory", startedAtMs: 1 });
    return store.commit([], [{ put: SANDBOXES + id, value }]);
  };
  const valueOf = async (id: string): Promise<string | undefined> => (await store.get(SANDBOXES + id))?.value;
  const isLive = async (id: string): Promise<boolean> => {
    const value = await valueOf(id);
    return value !== undefined && !value.includes("lostAtMs");
  };
  /** The other server's decision needs two operations of the store at most. */
  const decided = async (): Promise<void> => {
    await eventually("looked at", async () => looked > 0);
    for (let operation = 0; operation < 4; operation += 1) await store.get(MEMBER.key);
  };

  beforeEach(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-moved-"));
    store = openStore(
      fleetConfig.parse({
        address: "http://127.0.0.1:1",
        secret: "5eed".repeat(16),
        file: join(directory, "fleet.sqlite"),
      }),
      systemClock,
    );
    await store.commit([], [{ put: MEMBER.key, value: "{}" }]);
    clock = fakeClock();
    looked = 0;
    killed = [];
    const sandboxes = {
      find(id: string) {
        looked += 1;
        return { record: { id, owner: "me" } };
      },
      kill: async (id: string) => void killed.push(id),
    };
    const membership = { check: MEMBER };
    const log = { warn: () => {} };
    between = undefined;
    const slow = Object.assign(Object.create(store) as FleetStore, {
      async commit(...change: Parameters<FleetStore["commit"]>) {
        const act = between;
        between = undefined;
        await act?.();
        return store.commit(...change);
      },
      get: (key: string) => store.get(key),
      grant: (ttlMs: number) => store.grant(ttlMs),
      revoke: (lease: Parameters<FleetStore["revoke"]>[0]) => store.revoke(lease),
    });
    const options = { store: slow, membership, sandboxes, keptMs: 60_000, clock, log };
    moved = new MovedSandboxes(options as unknown as ConstructorParameters<typeof MovedSandboxes>[0]);
  });
  afterEach(async () => {
    moved[Symbol.dispose]();
    await store.close();
    await rm(directory, { recursive: true });
  });

  it("leaves the new one once the old one is given up, which is lost for a server that fails right then", async () => {
    await put("old", "a");
    await put("new", "b");
    moved.await("new", "old");
    await moved.cede("old", "new");
    assert.match((await valueOf("old")) ?? "", /"lostAtMs":\d+,"isMoved":true/);
    // As if the answer of the store had been lost.
    await moved.cede("old", "new");
    await clock.advance(CLAIM_MS);
    await decided();
    assert.deepEqual([await isLive("new"), killed], [true, []]);
  });

  it("leaves the old one when its server does not take notice of the new one, and refuses to give it up later", async () => {
    await put("old", "a");
    await put("new", "b");
    moved.await("new", "old");
    await clock.advance(CLAIM_MS);
    await eventually("the new one is ended", async () => killed.length === 1);
    assert.deepEqual([await isLive("old"), await valueOf("new"), killed], [true, undefined, ["new"]]);
    await assert.rejects(moved.cede("old", "new"), /has given the new sandbox up/);
    assert.equal(await isLive("old"), true);
  });

  it("leaves exactly one when the other server decides between the look and the commit", async () => {
    await put("old", "a");
    await put("new", "b");
    moved.await("new", "old");
    between = () => moved.cede("old", "new");
    await clock.advance(CLAIM_MS);
    await eventually("given up", async () => !(await isLive("old")));
    await decided();
    assert.deepEqual([await isLive("new"), killed], [true, []]);

    await put("old2", "a");
    await put("new2", "b");
    moved.await("new2", "old2");
    between = async () => {
      await clock.advance(CLAIM_MS);
      await eventually("the new one is ended", async () => killed.length === 1);
    };
    await assert.rejects(moved.cede("old2", "new2"), /has given the new sandbox up/);
    assert.deepEqual([await isLive("old2"), await isLive("new2"), killed], [true, false, ["new2"]]);
  });

  it("takes nobody's word for another tenant's sandbox", async () => {
    await put("old", "a", "another");
    await put("new", "b");
    moved.await("new", "old");
    await clock.advance(CLAIM_MS);
    await decided();
    assert.deepEqual([await isLive("new"), killed], [true, []]);
  });
});
