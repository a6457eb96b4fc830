import assert from "node:assert/strict";
import { describe, it } from "node:test";
import type { TestServer } from "@coppice/core/testing";
import { fakeClock, memoryBackend, startTestServer } from "@coppice/core/testing";
import { plugin as sandboxApi } from "../plugin.js";

const START = Date.UTC(2026, 0, 1);
const START_SECONDS = START / 1000;

interface Metric {
  readonly timestampUnix: number;
  readonly memUsed: number;
}

async function start(settings: object = {}) {
  const clock = fakeClock(START);
  const memory = memoryBackend({ pausing: {} });
  const server = await startTestServer({
    clock,
    plugins: [
      [memory, {}],
      [sandboxApi, settings],
    ],
  });
  return { clock, memory, server };
}

const make = (server: TestServer) =>
  server.sandboxes.create({ template: "base", timeoutMs: undefined, secure: true });

async function get<Body>(server: TestServer, path: string): Promise<Body> {
  const response = await fetch(server.url + path);
  assert.equal(response.status, 200, await response.clone().text());
  return (await response.json()) as Body;
}

const secondsOf = async (server: TestServer, path: string): Promise<readonly number[]> =>
  (await get<Metric[]>(server, path)).map(({ timestampUnix }) => timestampUnix - START_SECONDS);

describe("A.5 metrics of a sandbox", () => {
  it("are sampled in every interval, of running sandboxes, and queried by a window", async () => {
    const { clock, server } = await start();
    await using _server = server;
    const { record } = await make(server);
    const path = `/sandboxes/${record.id}/metrics`;
    assert.deepEqual(await secondsOf(server, path), [0], "the first one is taken when it is asked for");
    await clock.advance(12_000);
    assert.deepEqual(await secondsOf(server, path), [0, 5, 10]);
    const window = `${path}?start=${START_SECONDS + 5}&end=${START_SECONDS + 9}`;
    assert.deepEqual(await secondsOf(server, window), [5]);
    await server.sandboxes.pause(record.id);
    await clock.advance(10_000);
    assert.deepEqual(await secondsOf(server, path), [0, 5, 10], "a paused one uses nothing new");
    await server.sandboxes.resume(record.id, 60_000);
    await clock.advance(5_000);
    assert.deepEqual(await secondsOf(server, path), [0, 5, 10, 25]);
  });

  it("are dropped, the oldest first", async () => {
    const { clock, server } = await start({ metricsInterval: "1s", metricsKept: "3s" });
    await using _server = server;
    const { record } = await make(server);
    await clock.advance(10_000);
    assert.deepEqual(await secondsOf(server, `/sandboxes/${record.id}/metrics`), [8, 9, 10]);
  });

  it("do not wait for a sandbox whose backend hangs, nor query it again meanwhile", async () => {
    const { clock, server, memory } = await start();
    await using _server = server;
    const stuck = await Promise.all(Array.from({ length: 5 }, () => make(server)));
    const well = await make(server);
    const answered = Promise.withResolvers<void>();
    let asked = 0;
    for (const { record } of stuck) {
      const sandbox = memory.backend.sandboxes.get(record.id);
      assert.ok(sandbox);
      const stats = sandbox.stats.bind(sandbox);
      sandbox.stats = async () => {
        asked += 1;
        await answered.promise;
        return stats();
      };
    }
    await clock.advance(30_000);
    const seconds = await secondsOf(server, `/sandboxes/${well.record.id}/metrics`);
    assert.ok(seconds.length >= 2, `the others go on: ${seconds.join()}`);
    assert.equal(asked, stuck.length);
    answered.resolve();
    await clock.advance(5_000);
    const again = await secondsOf(server, `/sandboxes/${stuck[0]?.record.id}/metrics`);
    assert.ok(again.length >= 1, "it is sampled when it answers again");
  });

  it("of several sandboxes are the latest of each that there is", async () => {
    const { clock, server } = await start();
    await using _server = server;
    const [one, two] = [await make(server), await make(server)];
    await clock.advance(6_000);
    const ids = [one.record.id, `${two.record.id}-coppice`, "made0up"].join(",");
    const { sandboxes } = await get<{ sandboxes: Record<string, Metric> }>(
      server,
      `/sandboxes/metrics?sandbox_ids=${ids}`,
    );
    assert.deepEqual(Object.keys(sandboxes).toSorted(), [one.record.id, two.record.id].toSorted());
    for (const { timestampUnix } of Object.values(sandboxes)) assert.equal(timestampUnix - START_SECONDS, 5);
    for (const query of ["", "?sandbox_ids=", "?sandbox_ids=UPPER", `?sandbox_ids=${"a,".repeat(101)}`]) {
      const refused = await fetch(`${server.url}/sandboxes/metrics${query}`);
      assert.equal(refused.status, 400, query);
      await refused.body?.cancel();
    }
  });

  it("cost nothing but one timer while there are no sandboxes", async () => {
    const { clock, server } = await start();
    await using _server = server;
    const idle = clock.pending;
    await clock.advance(60_000);
    assert.equal(clock.pending, idle);
  });
});
