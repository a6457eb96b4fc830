import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { type AddressInfo, createServer as createTcpServer, type Socket } from "node:net";
import { describe, it } from "node:test";
import { StoreUnavailable } from "../fleet-store.js";
import { EtcdClient } from "./etcd-client.js";
import { EtcdStore } from "./etcd-store.js";

const LEASE = { id: "1", ttlMs: 20_000 };

/**
 * Renews a lease at a member that tells these terms of leaders in turn, the last one again and again.
 * @param silent URLs of members that are asked before.
 */
async function renewAt(
  terms: readonly number[],
  silent: readonly string[] = [],
): Promise<{ readonly renewed: unknown; readonly renewals: number }> {
  let answers = 0;
  let renewals = 0;
  const server = createServer((request, response) => {
    const term = terms[Math.min(answers, terms.length - 1)];
    answers += 1;
    const header = { member_id: "7", raft_term: String(term), revision: "1" };
    const isRenewal = request.url === "/v3/lease/keepalive";
    if (isRenewal) renewals += 1;
    response.end(JSON.stringify(isRenewal ? { result: { header, TTL: "2" } } : { header }));
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const client = new EtcdClient({
    endpoints: [...silent, url],
    login: undefined,
    tls: {},
    timeoutMs: 60_000,
  });
  const store = new EtcdStore({ client, prefix: "/coppice/", watchSilenceMs: 1000 });
  try {
    const renewed = await store.renew(LEASE).catch((error: unknown) => error);
    return { renewed, renewals };
  } finally {
    await store.close();
    server.close();
  }
}

describe("a lease in etcd", () => {
  it("is renewed by a leader that a majority has before and after", async () => {
    assert.deepEqual(await renewAt([4]), { renewed: true, renewals: 1 });
  });

  it("is renewed again when the leader may have been replaced before, for that one does not end leases", async () => {
    assert.deepEqual(await renewAt([4, 4, 5]), { renewed: true, renewals: 2 });
    assert.deepEqual(await renewAt([4, 5]), { renewed: true, renewals: 2 });
  });

  it("is renewed by another member soon, when one is silent", async () => {
    const sockets: Socket[] = [];
    const silent = createTcpServer((socket) => void sockets.push(socket)).listen(0, "127.0.0.1");
    await once(silent, "listening");
    const startedAt = performance.now();
    const url = `http://127.0.0.1:${(silent.address() as AddressInfo).port}`;
    assert.equal((await renewAt([4], [url])).renewed, true);
    const tookMs = performance.now() - startedAt;
    assert.ok(tookMs < LEASE.ttlMs / 2, `it took ${tookMs} ms`);
    for (const socket of sockets) socket.destroy();
    silent.close();
  });

  it("is not taken for renewed while leaders change", async () => {
    const { renewed } = await renewAt(Array.from({ length: 50 }, (_, index) => index));
    assert.ok(renewed instanceof StoreUnavailable, String(renewed));
  });
});
