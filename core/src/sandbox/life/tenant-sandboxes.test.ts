import assert from "node:assert/strict";
import { it } from "node:test";
import { SandboxError } from "../../kernel/errors.js";
import { definePlugin } from "../../plugin/plugin.js";
import { memoryBackend } from "../../testing/memory-backend.js";
import { startTestServer } from "../../testing/start-test-server.js";
import { Admissions } from "../model/admissions.js";
import type { SandboxId } from "../contract/backend.js";
import { SqliteLedger } from "../ledger/sqlite-ledger.js";
import type { Sandboxes } from "./sandboxes.js";

const REQUEST = { template: "base", timeoutMs: 60_000, secure: true };

/** Every operation that takes a sandbox's id. */
const WAYS: Readonly<Record<string, (sandboxes: Sandboxes, id: SandboxId) => unknown>> = {
  get: async (sandboxes, id) => sandboxes.get(id),
  kill: (sandboxes, id) => sandboxes.kill(id),
  setTimeout: (sandboxes, id) => sandboxes.setTimeout(id, 1000),
  setTimeoutToNow: (sandboxes, id) => sandboxes.setTimeout(id, 0),
  extend: (sandboxes, id) => sandboxes.extend(id, 1e6),
  pause: (sandboxes, id) => sandboxes.pause(id),
  resume: (sandboxes, id) => sandboxes.resume(id, 1000),
  setNetworkPolicy: (sandboxes, id) =>
    sandboxes.setNetworkPolicy(id, { allowInternetAccess: true, egress: undefined }),
  setLimits: (sandboxes, id) => sandboxes.setLimits(id, { memoryMiB: 32 }),
  extendTooFar: (sandboxes, id) => sandboxes.extend(id, 1e12),
};

it("a tenant's view contains its own sandboxes; others' are answered like unknown ones", async () => {
  await using server = await startTestServer({ plugins: [[memoryBackend()]] });
  const acme = server.sandboxes.of("acme");
  const other = acme.of("other");
  const told: SandboxId[] = [];
  acme.onCreated(({ record }) => told.push(record.id));
  const own = (await acme.create(REQUEST)).record;
  // A view creates sandboxes of its own tenant, whatever owner the request names.
  const foreign = (await other.create({ ...REQUEST, owner: "acme" })).record;
  const unowned = (await server.sandboxes.create(REQUEST)).record;
  assert.deepEqual([own.owner, foreign.owner, unowned.owner], ["acme", "other", "default"]);
  assert.deepEqual(
    acme.list().map(({ record }) => record.id),
    [own.id],
  );
  assert.deepEqual(told, [own.id]);
  assert.equal(acme.get(own.id).record.id, own.id);
  assert.equal(acme.find(foreign.id), undefined);
  assert.equal(await acme.remembers(own.id), true);
  assert.equal(await acme.remembers(foreign.id), false);
  const refusalOf = async (way: string, id: SandboxId): Promise<string> => {
    try {
      await WAYS[way]?.(acme, id);
    } catch (error) {
      if (error instanceof SandboxError) return `${error.code} ${error.message.replaceAll(id, "<id>")}`;
      throw error;
    }
    return "done";
  };
  for (const way of Object.keys(WAYS)) {
    const [toForeign, toMadeUp] = [await refusalOf(way, foreign.id), await refusalOf(way, "imadeup")];
    assert.match(toMadeUp, /^not_found /, way);
    assert.equal(toForeign, toMadeUp, way);
    assert.equal(await refusalOf(way, unowned.id), toMadeUp, way);
  }
  assert.equal(server.sandboxes.list().length, 3);
  assert.equal(other.get(foreign.id).record.endsAtMs, foreign.endsAtMs);
  const ending = other.kill(foreign.id);
  assert.equal(await refusalOf("kill", foreign.id), await refusalOf("kill", "imadeup"), "while it is ended");
  await ending;
  assert.equal(await acme.remembers(foreign.id), false);
  assert.equal(await other.remembers(foreign.id), true, "it has ended");
  assert.equal(await server.sandboxes.remembers(foreign.id), true);
  assert.equal(await server.sandboxes.remembers("imadeup"), false);
  await acme.kill(own.id);
  assert.deepEqual(acme.list(), []);
});

it("the end of another tenant's sandbox is looked up like that of an unknown one: both take as long", async (test) => {
  await using server = await startTestServer({ plugins: [[memoryBackend()]] });
  const { record } = await server.sandboxes.of("acme").create(REQUEST);
  const looked = test.mock.method(SqliteLedger.prototype, "findEnded");
  const stranger = server.sandboxes.of("stranger");
  for (const id of [record.id, "imadeup"]) assert.equal(await stranger.endOf(id), undefined);
  assert.deepEqual(
    looked.mock.calls.map(({ arguments: [id] }) => id),
    [record.id, "imadeup"],
  );
});

it("an admission check holds under a hundred parallel creations, owner by owner", async () => {
  const perOwner = 7;
  const quota = definePlugin({
    name: "quota",
    requires: { admissions: Admissions },
    setup(_plugin, { admissions }) {
      admissions.add({
        counts: () => true,
        check: (_wanted, existing) => {
          if (existing.length >= perOwner) throw new SandboxError("sandbox_limit_reached", "enough");
          return undefined;
        },
      });
    },
  });
  const memory = memoryBackend();
  await using server = await startTestServer({ plugins: [[memory], [quota]] });
  const attempts = Array.from({ length: 100 }, (_, index) =>
    server.sandboxes.of(index % 2 === 0 ? "even" : "odd").create(REQUEST),
  );
  const outcomes = await Promise.allSettled(attempts);
  assert.equal(outcomes.filter(({ status }) => status === "fulfilled").length, 2 * perOwner);
  assert.equal(memory.backend.alive.sandboxes, 2 * perOwner);
  const [first] = server.sandboxes.of("odd").list();
  assert.ok(first);
  await assert.rejects(server.sandboxes.of("odd").create(REQUEST), /enough/);
  await server.sandboxes.kill(first.record.id);
  await server.sandboxes.of("odd").create(REQUEST);
});
