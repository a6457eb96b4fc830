import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import type { SandboxEvent } from "@coppice/core";
import { fakeClock, runVerb } from "@coppice/core/testing";
import { eventsConfig } from "./events-config.js";
import { plugin } from "./plugin.js";
import { EventsStore } from "./store/events-store.js";

it("coppice events list tells an operator of the sandboxes of all tenants, beside a running server", async (context) => {
  const dataDir = await mkdtemp(join(tmpdir(), "coppice-events-"));
  const config = eventsConfig.parse({});
  const open = new EventsStore(dataDir, config);
  context.after(async () => {
    open.close();
    await rm(dataDir, { recursive: true });
  });
  const events = ["acme", "other"].map((owner, index): SandboxEvent => ({
    id: owner,
    type: "killed",
    atMs: index * 1000,
    sandboxId: `of-${owner}`,
    owner,
    template: "base",
    snapshot: undefined,
    metadata: {},
    detail: { reason: "killed" },
  }));
  open.record(events, 1000);
  const list = async (...args: readonly string[]) => {
    const rows: (readonly string[])[] = [];
    const lines: string[] = [];
    const code = await runVerb(plugin, ["events", "list", ...args], {
      config,
      clock: fakeClock(),
      dataDir: () => dataDir,
      server: () => assert.fail("it speaks to no server"),
      whileStopped: () => assert.fail("it stops no server"),
      print: (line) => lines.push(line),
      printTable: (_, table) => rows.push(...table),
    });
    assert.equal(code, 0);
    return { rows, lines };
  };
  const ended = ["base", "sandbox.lifecycle.killed", JSON.stringify({ reason: "killed" })];
  const acme = ["1970-01-01T00:00:00.000Z", "acme", "of-acme", ...ended];
  const other = ["1970-01-01T00:00:01.000Z", "other", "of-other", ...ended];
  assert.deepEqual((await list()).rows, [other, acme]);
  assert.deepEqual((await list("--limit", "1")).rows, [other]);
  assert.deepEqual((await list("--tenant", "acme")).rows, [acme]);
  assert.deepEqual((await list("--sandbox", "of-other")).rows, [other]);
  const [line = ""] = (await list("--sandbox", "of-acme", "--json")).lines;
  assert.equal((JSON.parse(line) as { readonly sandboxTeamId: string }).sandboxTeamId, "acme");
  await assert.rejects(list("--limit", "many"), { reason: "usage_invalid" });
});
