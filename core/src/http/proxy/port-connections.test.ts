import assert from "node:assert/strict";
import { once } from "node:events";
import { type Duplex, duplexPair } from "node:stream";
import { it } from "node:test";
import { Registry } from "prom-client";
import type { LiveSandbox } from "../../sandbox/model/live-sandbox.js";
import type { HttpExchange } from "./http-connection.js";
import { PortConnections } from "./port-connections.js";

const GOOD = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const exchange: HttpExchange = {
  method: "GET",
  head: () => undefined,
  body: () => undefined,
  end: () => undefined,
  drain: () => undefined,
  fail: (error) => assert.fail(String(error)),
};

it("a connection is kept after its exchange, unless its sandbox has ended meanwhile", async () => {
  const metrics = new Registry();
  const connections = new PortConnections({ headLimit: 1_000, maxIdle: 4, idleTimeoutMs: 60_000, metrics });
  const ended = new AbortController();
  const programs: Duplex[] = [];
  const dial = async (): Promise<Duplex> => {
    const [own, program] = duplexPair();
    programs.push(program);
    return own;
  };
  const sandbox = { ended: ended.signal, runtime: { dial } } as unknown as LiveSandbox;
  const target = { sandbox, port: 8080 } as Parameters<PortConnections["take"]>[0];
  const serve = async (): Promise<Awaited<ReturnType<PortConnections["dial"]>>> => {
    const connection = await connections.dial(target, new AbortController().signal, true);
    connection.begin(exchange);
    connection.sent();
    return connection;
  };
  const kept = await serve();
  programs[0]?.write(GOOD);
  await once(kept.stream, "data");
  assert.equal(connections.take(target), kept);
  kept.begin(exchange);
  kept.sent();
  ended.abort();
  programs[0]?.write(GOOD);
  await once(kept.stream, "close", { signal: AbortSignal.timeout(5_000) });
  assert.equal(connections.take(target), undefined);
});
