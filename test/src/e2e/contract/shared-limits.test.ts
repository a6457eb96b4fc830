import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { WebSocket } from "ws";
import type { Answer } from "../../harness/clients/exchange.js";
import { type Client, startTenantServer, type TenantServer } from "./tenant-server.js";

const MOST = 6;

describe("a bound of the server that all tenants have together", () => {
  let tenants: TenantServer;
  let evil: Client;
  let acme: Client;

  before(async () => {
    tenants = await startTenantServer({
      server: { sandboxes: { maximum: MOST, maximumVolumes: MOST, maximumSnapshots: MOST } },
      settings: { "legacy-shims": { maxExecutions: MOST, maxSockets: MOST, maxSocketsPerSandbox: MOST } },
    });
    evil = tenants.client({ tenant: "evil" });
    acme = tenants.client({ tenant: "acme" });
  });

  after(() => tenants[Symbol.asyncDispose]());

  /** Asks until it is refused, which is before everything is taken; then the other tenant is served. */
  async function leavesRoom(take: (who: Client) => Promise<Answer>): Promise<void> {
    let taken = 0;
    for (; taken <= MOST; taken += 1) {
      const answer = await take(evil);
      if (answer.status === 201) continue;
      assert.equal(answer.status, 429, answer.text);
      assert.match(answer.text, /\(3 of 6, the rest is for other tenants\)/);
      break;
    }
    assert.equal(taken, 3);
    const answer = await take(acme);
    assert.equal(answer.status, 201, answer.text);
  }

  it("leaves room for others: sandboxes", async () => {
    const make = (who: Client) => who.ask("POST", "/v2/sandboxes", '{"templateID":"base"}');
    await leavesRoom(make);
    for (const { record } of tenants.server.sandboxes.list()) await tenants.server.sandboxes.kill(record.id);
  });

  it("leaves room for others: executions and WebSockets", async () => {
    const [own, theirs] = [await acme.createSandbox(), await evil.createSandbox()];
    const exec = (who: Client, id: string, cmd: string) =>
      who.ask("POST", `/sandboxes/${id}/exec`, JSON.stringify({ cmd, timeout_ms: 60_000 }));
    const long = Array.from({ length: 3 }, () => exec(evil, theirs.id, "sleep 600"));
    await eventually("the refusal of a fourth execution", async () => {
      const { status, text } = await exec(evil, theirs.id, "true");
      return status === 429 && text.includes("(3 of 6, the rest is for other tenants)");
    });
    assert.equal((await exec(acme, own.id, "true")).status, 200);

    const sockets: WebSocket[] = [];
    const open = async (who: Client, id: string): Promise<number> => {
      const url = `${tenants.server.url.replace(/^http/, "ws")}/sandboxes/${id}/ws`;
      const socket = new WebSocket(url, { headers: { authorization: who.authorization } });
      sockets.push(socket);
      const { promise, resolve } = Promise.withResolvers<number>();
      socket.once("open", () => resolve(101));
      socket.once("unexpected-response", (_request, response) => resolve(response.statusCode ?? 0));
      socket.on("error", () => undefined);
      return promise;
    };
    for (const expected of [101, 101, 101, 429]) assert.equal(await open(evil, theirs.id), expected);
    assert.equal(await open(acme, own.id), 101);
    for (const socket of sockets) socket.terminate();
    for (const { record } of tenants.server.sandboxes.list()) await tenants.server.sandboxes.kill(record.id);
    await Promise.allSettled(long);
  });

  it("leaves room for others: volumes", async (t) => {
    let number = 0;
    const make = (who: Client) => who.ask("POST", "/volumes", `{"name":"v${(number += 1)}"}`);
    const probe = await make(acme);
    if (probe.status === 400) return t.skip("this host's backend has no volumes");
    const { volumeID } = probe.json() as { readonly volumeID: string };
    assert.equal((await acme.ask("DELETE", `/volumes/${volumeID}`)).status, 204);
    await leavesRoom(make);
  });

  it("leaves room for others: snapshots; and forks need none", async (t) => {
    const own = new Map<Client, string>();
    for (const who of [evil, acme]) own.set(who, (await who.createSandbox()).id);
    const probe = await acme.ask("POST", `/sandboxes/${own.get(acme)}/snapshots`, "{}");
    if (probe.status === 400) return t.skip("this host's backend has no snapshots");
    const { snapshotID } = probe.json() as { readonly snapshotID: string };
    assert.equal((await acme.ask("DELETE", `/templates/${encodeURIComponent(snapshotID)}`)).status, 204);
    await leavesRoom((who) => who.ask("POST", `/sandboxes/${own.get(who)}/snapshots`, "{}"));
    const fork = await evil.ask("POST", `/sandboxes/${own.get(evil)}/fork`, '{"count":1}');
    assert.equal(fork.status, 201, fork.text);
    assert.match(fork.text, /"sandboxID"/);
  });
});
