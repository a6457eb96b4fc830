import assert from "node:assert/strict";
import { it } from "node:test";
import type { Principal } from "@coppice/core";
import type { NodeRecord } from "../membership/node-record.js";
import type { FleetSandbox } from "../records/fleet-sandbox.js";
import { FleetSecrets } from "../trust/fleet-secrets.js";
import { FleetPeers } from "./fleet-peers.js";
import { peerConnections } from "./http-peer.js";
import { type Asker, LookUps } from "./look-ups.js";

it("another tenant's sandbox is looked for as one that nobody has, and its server is not asked", async () => {
  const secrets = new FleetSecrets({ secret: "secret" });
  const [secret] = Object.keys(secrets.proofsOf(["record"]));
  const run = { identity: "other", run: "run" };
  const node: NodeRecord = {
    ...run,
    address: "http://127.0.0.1:1",
    version: "1",
    joinedAtMs: 0,
    revision: 1,
    secret,
  };
  const facts = { node: "other", tenant: "acme", template: "base", backend: "b", startedAtMs: 0 };
  const theirs: FleetSandbox = { ...facts, revision: 1 };
  const asked: string[] = [];
  const store = {
    async get(key: string) {
      asked.push(key);
      const value = JSON.stringify(facts);
      return key.endsWith("/theirs") ? { key, value, createRevision: 1, modRevision: 1 } : undefined;
    },
  };
  using connections = peerConnections({ ca: undefined, maxAnswer: 1024 });
  const peers = new FleetPeers({
    listener: "fleet",
    node: "own",
    secrets,
    own: () => ({ identity: "own", run: "run" }),
    isInsecure: () => false,
    store,
    nodes: new Map([["other", node]]),
    sandboxes: new Map([["theirs", theirs]]),
    cordons: new Map<string, true>(),
    requireMember: () => {},
    connections,
    onFailure: () => {},
    connectMs: 1000,
    clock: { now: Date.now, after: () => () => {} },
    gatherMs: 1000,
    lookUps: new LookUps(8, { add: () => {}, refusal: () => undefined }),
  });
  const principal = (tenant: string): Principal => ({ tenant, name: "key", scopes: new Set(["admin"]) });
  const by = (of: Principal | undefined): Asker => ({ principal: of, clientAddress: "198.51.100.1" });
  assert.equal(await peers.find("theirs", by(principal("stranger"))), undefined);
  assert.equal(await peers.find("nobodys", by(principal("stranger"))), undefined);
  assert.deepEqual(asked.splice(0), ["sandboxes/theirs", "sandboxes/nobodys"]);
  // Its token decides on a request without a tenant.
  for (const asker of [by(principal("acme")), by(undefined)])
    assert.equal(await peers.find("theirs", asker), peers.named("other"));
  assert.deepEqual(asked, [], "its place is known");
  peers.end();
});
