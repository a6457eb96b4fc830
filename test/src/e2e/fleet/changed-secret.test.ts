import assert from "node:assert/strict";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { eventually, WITHOUT_SMALL_ROOT } from "@coppice/core/testing";
import { reasonWithoutEtcd } from "@coppice/plugin-fleet/testing";
import { Template } from "e2b";
import { API_KEY } from "../../harness/server/api-key.js";
import { startCoppice } from "../../harness/server/coppice-command.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { SharingServers } from "../../harness/server/sharing-servers.js";

const skip = reasonWithoutEtcd() || missingForNamespaces() || WITHOUT_SMALL_ROOT;
const COUNT = 3;
const [FIRST, NEXT] = ["5eed", "beef"].map((word) => word.repeat(16)) as [string, string];
/** Time after which a request hangs. */
const PATIENCE_MS = 30_000;
const WAIT_MS = 100;
const AWAY_MS = 250;

interface Answer {
  readonly status: number;
  readonly text: string;
}

interface Made {
  readonly id: string;
  readonly token: string;
}

describe("a fleet whose secret is changed under load", { skip, timeout: 400_000 }, () => {
  let servers: SharingServers;
  const wrong: string[] = [];
  const counts: Record<string, number> = {};
  let probes = 0;

  const fleet = (action: string, ...words: readonly string[]) =>
    startCoppice(["fleet", action, servers.configFile(0), ...words]).end;
  /** @returns undefined where the server is not there: its connection was refused or cut. */
  const ask = async (
    index: number,
    path: string,
    {
      headers = {},
      ...init
    }: Omit<RequestInit, "headers"> & { readonly headers?: Readonly<Record<string, string>> } = {},
  ): Promise<Answer | undefined> => {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    try {
      const answer = await fetch(servers.url(index) + path, {
        ...init,
        headers: { "x-api-key": API_KEY, ...headers },
        signal,
      });
      return { status: answer.status, text: await answer.text() };
    } catch (error) {
      if (signal.aborted) wrong.push(`${init.method ?? "GET"} ${path} at node${index} hangs`);
      else if (!(error instanceof TypeError)) throw error;
      return undefined;
    }
  };
  const create = (index: number, name: string): Promise<Answer | undefined> =>
    ask(index, "/v2/sandboxes", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ templateID: "small", timeout: 600, metadata: { name } }),
    });
  const inSandbox = (index: number, { id, token }: Made, body?: string): Promise<Answer | undefined> =>
    ask(index, "/files?path=/root/own&username=root", {
      ...(body !== undefined && { method: "POST", body }),
      headers: {
        "e2b-sandbox-id": id,
        "e2b-sandbox-port": "49983",
        "x-access-token": token,
        ...(body !== undefined && { "content-type": "application/octet-stream" }),
      },
    });
  const note = (
    index: number,
    what: string,
    answer: Answer | undefined,
    ...expected: readonly number[]
  ): boolean => {
    const status = answer?.status ?? 0;
    counts[`${what} ${status}`] = (counts[`${what} ${status}`] ?? 0) + 1;
    if (expected.includes(status)) return true;
    // It is away, or stops: the client is told to try again.
    if (status !== 0 && status !== 503) wrong.push(`${what} at node${index}: ${status} ${answer?.text}`);
    return false;
  };
  const madeOf = ({ text }: Answer): Made => {
    const { sandboxID: id = "", envdAccessToken: token = "" } = JSON.parse(text) as Record<string, string>;
    return { id, token };
  };

  /** True when each server makes a sandbox, or has one made, which all others serve. */
  const isWhole = async (): Promise<boolean> => {
    for (let index = 0; index < COUNT; index += 1) {
      const answer = await create(index, `probe${(probes += 1)}`);
      if (answer?.status !== 201) return false;
      const made = madeOf(answer);
      const wrote = await inSandbox(index, made, "probe");
      const reads = await Promise.all([0, 1, 2].map((via) => inSandbox(via, made)));
      await ask(index, `/sandboxes/${made.id}`, { method: "DELETE" });
      if (wrote?.status !== 200 || reads.some((read) => read?.status !== 200)) return false;
    }
    return true;
  };

  before(async () => {
    servers = await SharingServers.start({ lease: "60s", count: COUNT, sandboxes: { onShutdown: "keep" } });
    await servers.stop();
    for (let index = 0; index < COUNT; index += 1) {
      await servers.configure(index, { secret: FIRST });
      await servers.restart(index);
    }
    pointSdkAt(servers.url(0));
    await Template.build(Template().fromImage("small"), "small");
    // Until it is in the registry, only the server that has built it makes sandboxes of it.
    await eventually("it is shared", async () =>
      (await servers.values("templates/")).some((text) => text.includes("sha256:")),
    );
  });
  after(async () => {
    for (let index = 0; index < COUNT; index += 1)
      if (servers.processes[index] === undefined) await servers.restart(index);
    const { text = "[]" } = (await ask(0, "/v2/sandboxes")) ?? {};
    for (const { sandboxID } of JSON.parse(text) as { readonly sandboxID: string }[])
      await ask(0, `/sandboxes/${sandboxID}`, { method: "DELETE" });
    await servers[Symbol.asyncDispose]();
  });

  it("answers creations, moves and requests for sandboxes of other servers rightly, or asks to try again", async (t) => {
    const over = new AbortController();
    /** A client of each server: what it makes is used through all of them. */
    const load = async (index: number): Promise<void> => {
      for (let round = 0; !over.signal.aborted; round += 1) {
        await pause(WAIT_MS);
        const name = `client${index}-${round}`;
        const answer = await create(index, name);
        if (!note(index, "create", answer, 201) || answer === undefined) {
          await pause(AWAY_MS);
          continue;
        }
        const made = madeOf(answer);
        let isWritten = false;
        for (let use = 0; use < 2 * COUNT; use += 1) {
          const via = (index + use) % COUNT;
          if (!isWritten) {
            const written = await inSandbox(via, made, name);
            isWritten = note(via, "write", written, 200, 502);
            continue;
          }
          const read = await inSandbox(via, made);
          // A moved one goes on under another id.
          if (note(via, "read", read, 200, 502) && read?.status === 200) assert.equal(read.text, name);
          note(via, "list", await ask(via, "/v2/sandboxes"), 200);
        }
        const killed = await ask(index, `/sandboxes/${made.id}`, { method: "DELETE" });
        note(index, "kill", killed, 204, 404);
      }
    };
    // Those that are moved.
    const others = ["node0", "node2"];
    for (const other of others) await fleet("cordon", other);
    for (let index = 0; index < COUNT; index += 1) {
      const name = `lasting${index}`;
      const answer = await create(index, name);
      assert.equal(answer?.status, 201);
      assert.equal((await inSandbox(index, madeOf(answer), name))?.status, 200);
    }
    for (const other of others) await fleet("uncordon", other);
    const clients = Array.from({ length: COUNT }, (_, index) => load(index));
    try {
      for (const secrets of [
        { secret: NEXT, previousSecrets: [FIRST] },
        { secret: NEXT, previousSecrets: [] },
      ])
        for (let index = 0; index < COUNT; index += 1) {
          // Once in each round: a move takes many seconds.
          const moving = index === 0 ? fleet("drain", "node1", "--move") : undefined;
          await servers.configure(index, secrets);
          const [stopped] = await Promise.all([servers.processes[index]?.stop(), pause(300)]);
          assert.deepEqual(stopped, { code: 0, signal: null });
          await servers.restart(index);
          const moved = await moving;
          assert.ok(moved === undefined || moved.code === 0 || moved.code === 1, moved?.stdout.toString());
          if (moved !== undefined) await fleet("uncordon", "node1");
          await eventually("all serve what the others have", () => isWhole(), 15_000);
        }
    } finally {
      over.abort();
      await Promise.all(clients);
    }
    t.diagnostic(JSON.stringify(counts));
    assert.deepEqual(wrong, []);
    for (const done of ["create 201", "read 200", "kill 204"]) assert.ok((counts[done] ?? 0) > COUNT, done);
  });

  it("has left no sandbox by halves: each is in the record once, serves, and ends", async () => {
    interface Listed {
      readonly sandboxID: string;
      readonly metadata?: Readonly<Record<string, string>>;
    }
    const listed = async (): Promise<readonly Listed[]> =>
      JSON.parse((await ask(0, "/v2/sandboxes"))?.text ?? "[]") as readonly Listed[];
    await eventually(
      "moves are decided",
      async () => {
        const names = (await listed()).map(({ metadata }) => metadata?.["name"]);
        return new Set(names).size === names.length;
      },
      40_000,
    );
    const all = await listed();
    const lasting = all.filter(({ metadata }) => metadata?.["name"]?.startsWith("lasting"));
    assert.equal(lasting.length, COUNT, JSON.stringify(all));
    assert.ok(
      lasting.some(({ metadata }) => metadata?.["coppice.movedFrom"] !== undefined),
      "nothing was moved",
    );
    for (const { sandboxID, metadata } of lasting) {
      const made = await ask(0, `/sandboxes/${sandboxID}/connect`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ timeout: 600 }),
      });
      assert.equal((await inSandbox(0, madeOf(made as Answer)))?.text, metadata?.["name"]);
    }
    for (const { sandboxID: id } of all)
      for (let via = 0; via < COUNT; via += 1)
        assert.equal((await ask(via, `/sandboxes/${id}`))?.status, 200, id);
    for (const { sandboxID: id } of all)
      assert.equal((await ask(1, `/sandboxes/${id}`, { method: "DELETE" }))?.status, 204, id);
    await eventually("nothing is recorded", async () =>
      (await servers.values("sandboxes/")).every((text) => text.includes("lostAtMs")),
    );
    assert.deepEqual(await servers.values("tenants/"), []);
    for (let index = 0; index < COUNT; index += 1)
      assert.deepEqual(await readdir(join(servers.dataDirectory(index), "../namespaces/sandboxes")), []);
  });

  it("refuses the former secret", async () => {
    const answer = await create(0, "last");
    assert.equal(answer?.status, 201);
    const { id } = madeOf(answer);
    await servers.processes[2]?.stop();
    await servers.configure(2, { secret: FIRST });
    await servers.restart(2);
    const { stdout } = await fleet("status");
    assert.match(stdout.toString(), /^node2\s+unproven/m);
    assert.notEqual((await ask(2, `/sandboxes/${id}`))?.status, 200);
    assert.equal((await ask(0, `/sandboxes/${id}`))?.status, 200);
    await ask(0, `/sandboxes/${id}`, { method: "DELETE" });
  });
});
