import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, describe, it } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { Sandbox } from "e2b";
import { type Cluster, reasonWithoutEtcd, startEtcd } from "@coppice/plugin-fleet/testing";
import { eventually } from "@coppice/core/testing";
import { API_KEY } from "../../harness/server/api-key.js";
import { startCoppice } from "../../harness/server/coppice-command.js";
import { makeFleetInstallations } from "../../harness/server/fleet-installations.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { type Installation, ServerProcess } from "../../harness/server/server-process.js";

const LEASE_MS = 3000;
const LOST = "its server was lost";

describe("a fleet that loses a server", { skip: reasonWithoutEtcd(), timeout: 240_000 }, () => {
  let etcd: Cluster;
  let installations: readonly Installation[];
  let servers: ServerProcess[];
  let fleets = 0;

  before(async () => {
    etcd = await startEtcd();
  });
  after(() => etcd[Symbol.asyncDispose]());

  beforeEach(async () => {
    fleets += 1;
    installations = await makeFleetInstallations({
      count: 2,
      fleet: {
        etcd: { endpoints: etcd.endpoints, prefix: `/fleet${fleets}/` },
        lease: `${LEASE_MS}ms`,
        restart: "20s",
      },
      plugins: () => ({ "commands-v1": {} }),
    });
    servers = [];
    for (const { configFile } of installations) servers.push(await ServerProcess.start(configFile));
  });
  afterEach(async () => {
    for (const server of servers) {
      server.signal("SIGCONT");
      await server.stop();
    }
    for (const installation of installations) await installation.remove();
  });

  const urlOf = (index: number): string => servers[index]?.url ?? "";
  const restart = async (index: number): Promise<void> => {
    servers[index] = await ServerProcess.start(installations[index]?.configFile ?? "");
  };
  const signal = (index: number, name: NodeJS.Signals): void => servers[index]?.signal(name);
  /** A server takes what it is asked for as long as no other is better off. */
  const createOn = (index: number): Promise<Sandbox> => {
    pointSdkAt(urlOf(index));
    return Sandbox.create();
  };
  /** Creates one with the same `Idempotency-Key` each time. @returns its id, or the answer */
  const createOnceOn = async (index: number, key = "once"): Promise<string> => {
    const answer = await fetch(`${urlOf(index)}/sandboxes`, {
      method: "POST",
      headers: { "x-api-key": API_KEY, "content-type": "application/json", "idempotency-key": key },
      body: JSON.stringify({ templateID: "base", timeout: 600 }),
    });
    const body = (await answer.json()) as { readonly sandboxID?: string };
    return body.sandboxID ?? `${answer.status} ${JSON.stringify(body)}`;
  };
  /** What a server says of a sandbox to its owner; the SDK's own error leaves out how it ended. */
  const told = async (index: number, id: string): Promise<string> => {
    const answer = await fetch(`${urlOf(index)}/sandboxes/${id}`, { headers: { "x-api-key": API_KEY } });
    const body = await answer.text();
    return answer.ok ? "there" : `${answer.status} ${body}`;
  };

  /** Reasons of the ends that a server tells of a sandbox as events. */
  const endsOf = async (index: number, id: string): Promise<readonly string[]> => {
    const path = `/events/sandboxes/${id}?types=sandbox.lifecycle.killed`;
    const answer = await fetch(urlOf(index) + path, { headers: { "x-api-key": API_KEY } });
    const events = (await answer.json()) as readonly { readonly eventData: { readonly reason: string } }[];
    return events.map(({ eventData }) => eventData.reason);
  };
  /** Starts a command, whose path in `/v1` this is, and waits for its output. */
  const beginCommand = async (index: number, id: string): Promise<string> => {
    const path = `/v1/sandboxes/${id}/commands`;
    const answer = await fetch(urlOf(index) + path, {
      method: "POST",
      headers: { "x-api-key": API_KEY },
      body: JSON.stringify({ argv: ["sh", "-c", "echo begun; exec sleep 600"] }),
    });
    const { command_id: command } = (await answer.json()) as { readonly command_id: string };
    await eventually("its output", async () => (await logOf(index, `${path}/${command}`)).text === "begun\n");
    return `${path}/${command}`;
  };
  /** What the log of a command tells. */
  const logOf = async (index: number, path: string) => {
    const answer = await fetch(`${urlOf(index)}${path}/logs`, { headers: { "x-api-key": API_KEY } });
    const { phase, bytes } = (await answer.json()) as { readonly phase: string; readonly bytes: string };
    return { phase, text: bytes };
  };
  /** The answer to one who has the token of a sandbox, and asks for a port of it. */
  const portOf = async (index: number, sandbox: Sandbox): Promise<string> => {
    const { envdAccessToken: token } = sandbox as unknown as { readonly envdAccessToken: string };
    const headers = { "e2b-sandbox-id": sandbox.sandboxId, "e2b-sandbox-port": "9", "x-access-token": token };
    const answer = await fetch(urlOf(index), { headers });
    return `${answer.status} ${await answer.text()}`;
  };
  const statusOf = async (index: number, path: string): Promise<number> =>
    (await fetch(urlOf(index) + path, { headers: { "x-api-key": API_KEY } })).status;

  it("tells its owner so within the lease, and the server ends what was given up when it is back", async () => {
    const sandbox = await createOn(0);
    const kept = await createOn(1);
    const once = await createOnceOn(0);
    assert.equal(await createOnceOn(1), once);
    assert.equal(await told(1, sandbox.sandboxId), "there");
    const command = await beginCommand(1, sandbox.sandboxId);
    pointSdkAt(urlOf(1));
    const elsewhere = await Sandbox.connect(sandbox.sandboxId);
    const streamed = await elsewhere.commands.run("sleep 600", { background: true, timeoutMs: 0 });
    const ended = streamed.wait().then(() => "ended", String);
    signal(0, "SIGKILL");
    const killedAt = performance.now();
    await servers[0]?.ended;
    assert.match(await ended, /\[unavailable\].*'node0'/);
    assert.match(await told(1, sandbox.sandboxId), /^503 .*node0/);
    assert.equal(await statusOf(1, "/templates/nothing"), 503, "it might be there");
    await eventually("its loss is told", async () => (await told(1, sandbox.sandboxId)).includes(LOST));
    assert.match(await portOf(1, sandbox), new RegExp(`^502 .*${LOST}`));
    assert.equal(await statusOf(1, "/templates/nothing"), 404);
    await eventually("an event tells it", async () => (await endsOf(1, sandbox.sandboxId)).length > 0);
    assert.deepEqual(await endsOf(1, kept.sandboxId), []);
    assert.ok(performance.now() - killedAt > LEASE_MS / 2, "it was told before the lease could end");
    assert.equal(await told(1, kept.sandboxId), "there");
    const again = await createOnceOn(1);
    assert.notEqual(again, once);
    assert.equal(await told(1, again), "there");
    await restart(0);
    await eventually("its server has ended it", async () =>
      /not found/.test(await told(0, sandbox.sandboxId)),
    );
    assert.equal(await told(0, kept.sandboxId), "there");
    assert.deepEqual(await logOf(1, command), { phase: "lost", text: "begun\n" });
    // Once, also where the lost server has its own word for what its crash has ended.
    for (const index of [0, 1]) assert.equal((await endsOf(index, sandbox.sandboxId)).length, 1);
    const next = await createOn(0);
    assert.equal(await told(1, next.sandboxId), "there");
  });

  it("is no fleet for a server that was stopped for longer than its lease: it cuts its streams and ends what was given up", async () => {
    const sandbox = await createOn(0);
    let counted = 0;
    const counting = await sandbox.commands.run("while :; do echo x; sleep 0.05; done", {
      background: true,
      timeoutMs: 0,
      onStdout: () => void (counted += 1),
    });
    const ended = counting.wait().then(
      () => "ended",
      (error: unknown) => String(error),
    );
    await eventually("its output comes", () => counted > 3);
    signal(0, "SIGSTOP");
    await eventually("its loss is told", async () => (await told(1, sandbox.sandboxId)).includes(LOST));
    const before = counted;
    signal(0, "SIGCONT");
    assert.notEqual(await ended, "ended");
    // What was on its way when it was stopped.
    assert.ok(counted - before < 5, `${counted - before} more lines were told`);
    await eventually("its server has ended it", async () =>
      /not found/.test(await told(0, sandbox.sandboxId)),
    );
    assert.match(await told(1, sandbox.sandboxId), /its server was lost/);
    pointSdkAt(urlOf(0));
    const next = await eventually("it is a member again", () => Sandbox.create().catch(() => undefined));
    assert.equal(await told(1, next.sandboxId), "there");
  });

  it("has one sandbox for each Idempotency-Key, also where a server was killed during the creation", async () => {
    // So that the other one makes them.
    await startCoppice(["fleet", "cordon", installations[0]?.configFile ?? "", "node0"]).end;
    const ids: string[] = [];
    let interrupted = 0;
    for (const delayMs of [0, 5, 10, 15, 20]) {
      const key = `after-${delayMs}`;
      const first = createOnceOn(0, key).catch(() => undefined);
      await pause(delayMs);
      signal(0, "SIGKILL");
      await servers[0]?.ended;
      const again = await createOnceOn(1, key);
      const told = await first;
      if (told === undefined) interrupted += 1;
      else assert.equal(again, told);
      assert.match(again, /^[a-z0-9]+$/);
      ids.push(again);
      await restart(0);
    }
    assert.ok(interrupted > 0, "no creation was interrupted");
    pointSdkAt(urlOf(0));
    await eventually("nothing else is there", async () => {
      const there = (await Sandbox.list().nextItems()).map(({ sandboxId }) => sandboxId);
      return there.toSorted().join() === ids.toSorted().join();
    });
  });
});
