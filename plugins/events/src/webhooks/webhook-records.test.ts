import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import type { TenantRecords } from "@coppice/core";
import { eventsConfig } from "../events-config.js";
import { EventsStore } from "../store/events-store.js";
import type { Webhook } from "../store/delivery-table.js";
import { sharedWebhooks } from "./webhook-records.js";

type RecordFollower = Parameters<NonNullable<TenantRecords["used"]>>[1];
type TenantRecord = Parameters<RecordFollower["began"]>[0][number];

function webhookOf(id: string): Webhook {
  const wish = { name: id, url: "https://hooks.example/", types: ["x"], isEnabled: true, secret: "quiet" };
  return { id, tenant: "me", ...wish, createdAtMs: 0 };
}

/** What several servers have in common, without them. */
function commonRecords(all: Map<string, string>) {
  let follower: RecordFollower | undefined;
  const list = (): readonly TenantRecord[] => [...all].map(([id, text]) => ({ id, text }));
  const records: Pick<TenantRecords, "used"> = {
    used: async (_kind, wanted) => {
      follower = wanted;
      wanted.began(list());
      return {
        list: async () => list(),
        async change(_tenant, id, decide) {
          const text = decide(list());
          if (text === undefined) all.delete(id);
          else all.set(id, text);
          wanted.changed(id, text);
        },
        stop: async () => undefined,
      };
    },
  };
  return { records, told: (id: string, text: string | undefined) => follower?.changed(id, text) };
}

it("a server that joins gives the others what it has alone, and gives up what they have removed", async (context) => {
  const dataDir = await mkdtemp(join(tmpdir(), "coppice-events-"));
  const opened = new EventsStore(dataDir, eventsConfig.parse({}));
  const store = opened.webhooks;
  context.after(async () => {
    opened.close();
    await rm(dataDir, { recursive: true });
  });
  store.put({ ...webhookOf("own"), isShared: false });
  store.put({ ...webhookOf("removed"), isShared: true });
  const all = new Map([
    ["other", JSON.stringify(webhookOf("other"))],
    ["newer", '{"id":"newer","tenant":"me"}'],
    // No list could be answered with it.
    ["timeless", JSON.stringify({ ...webhookOf("timeless"), createdAtMs: 1e300 })],
  ]);
  const { records, told } = commonRecords(all);
  const due: string[] = [];
  const shared = await sharedWebhooks({ records, store, onDue: (id) => void due.push(id) });
  assert.ok(shared);
  const both = [webhookOf("other"), webhookOf("own")];
  const known = [
    { ...webhookOf("other"), isShared: true },
    { ...webhookOf("own"), isShared: true },
  ];
  assert.deepEqual(store.list("me"), known);
  assert.deepEqual(await shared.list("me"), both);
  assert.deepEqual(JSON.parse(all.get("own") ?? ""), webhookOf("own"));
  assert.deepEqual(store.all({ isShared: false }), [], "it would be given to the others again");
  due.length = 0;
  const changed = { ...webhookOf("other"), isEnabled: false };
  told("other", JSON.stringify(changed));
  told("own", undefined);
  assert.deepEqual(store.list("me"), [{ ...changed, isShared: true }]);
  assert.deepEqual(due, ["other", "own"]);
});
