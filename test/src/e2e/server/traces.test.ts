import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { json } from "node:stream/consumers";
import { after, before, describe, it } from "node:test";
import { eventually, freePort } from "@coppice/core/testing";
import { Sandbox } from "e2b";
import { exchange } from "../../harness/clients/exchange.js";
import { API_KEY } from "../../harness/server/api-key.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { type Installation, makeInstallation, ServerProcess } from "../../harness/server/server-process.js";

/** As OTLP over HTTP has it in JSON. */
interface SentSpan {
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId?: string;
  readonly name: string;
  readonly links?: readonly { readonly traceId: string }[];
  readonly startTimeUnixNano: string;
  readonly endTimeUnixNano: string;
  readonly attributes: readonly { readonly key: string; readonly value: Readonly<Record<string, unknown>> }[];
}

interface Sent {
  readonly resourceSpans: readonly {
    readonly resource: Pick<SentSpan, "attributes">;
    readonly scopeSpans: readonly { readonly spans: readonly SentSpan[] }[];
  }[];
}

const attributeOf = ({ attributes }: Pick<SentSpan, "attributes">, name: string): unknown =>
  Object.values(attributes.find(({ key }) => key === name)?.value ?? {})[0];

const msOf = ({ startTimeUnixNano, endTimeUnixNano }: SentSpan): number =>
  Number(BigInt(endTimeUnixNano) - BigInt(startTimeUnixNano)) / 1e6;

/** A trace that a client has begun. */
function clientTrace() {
  const [traceId, spanId] = [randomBytes(16).toString("hex"), randomBytes(8).toString("hex")];
  return { traceId, spanId, traceparent: `00-${traceId}-${spanId}-01` };
}

async function listen(
  take: (message: IncomingMessage) => Promise<void>,
): Promise<AsyncDisposable & { port: number }> {
  const server = createServer((message, response) => {
    void take(message).then(() => response.end("{}"));
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    port: (server.address() as AddressInfo).port,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
      await once(server, "close");
    },
  };
}

describe("traces by the SDK of OpenTelemetry", { timeout: 120_000 }, () => {
  const spans: (SentSpan & { readonly service: string })[] = [];
  const [creating, reading] = [clientTrace(), clientTrace()];
  const installations: Installation[] = [];
  let webhookTrace: string | undefined;

  before(async () => {
    await using collector = await listen(async (message) => {
      const { resourceSpans } = (await json(message)) as Sent;
      for (const { resource, scopeSpans } of resourceSpans)
        for (const span of scopeSpans.flatMap((scope) => scope.spans))
          spans.push({ ...span, service: String(attributeOf(resource, "service.name")) });
    });
    await using receiver = await listen(async ({ headers }) => {
      webhookTrace ??= String(headers["traceparent"]);
    });
    const secret = randomBytes(32).toString("hex");
    const install = async (node: string): Promise<Installation> => {
      const port = await freePort();
      const listener = { host: "127.0.0.1", port: 0 };
      const installation = await makeInstallation({
        config: { listeners: { api: listener, fleet: { ...listener, port } } },
        plugins: (directory) => ({
          events: { webhooks: { privateTargets: ["127.0.0.1"] } },
          fleet: {
            node,
            secret,
            address: `http://127.0.0.1:${port}`,
            file: join(installations[0]?.directory ?? directory, "fleet.sqlite"),
          },
          opentelemetry: { endpoint: `http://127.0.0.1:${collector.port}/v1/traces`, serviceName: node },
        }),
      });
      installations.push(installation);
      return installation;
    };
    const first = await ServerProcess.start((await install("first")).configFile);
    const second = await ServerProcess.start((await install("second")).configFile);
    pointSdkAt(first.url);
    await exchange(first.url, {
      method: "POST",
      path: "/events/webhooks",
      headers: { "content-type": "application/json", "x-api-key": API_KEY },
      body: JSON.stringify({
        url: `http://127.0.0.1:${receiver.port}/`,
        events: ["sandbox.lifecycle.created"],
      }),
    });
    const sandbox = await Sandbox.create({ headers: { traceparent: creating.traceparent } });
    const path = `/sandboxes/${sandbox.sandboxId}`;
    const headers = { "x-api-key": API_KEY, "traceparent": reading.traceparent };
    await eventually(
      "the other server passes it on",
      async () => (await exchange(second.url, { path, headers })).status === 200,
    );
    await eventually("a delivery", () => webhookTrace !== undefined);
    await sandbox.kill();
    // A stop sends what waits.
    await second[Symbol.asyncDispose]();
    await first[Symbol.asyncDispose]();
  });

  after(async () => {
    for (const installation of installations) await installation.remove();
  });

  const only = (isWanted: (span: (typeof spans)[number]) => boolean, what: string) => {
    const found = spans.filter(isWanted);
    assert.equal(
      found.length,
      1,
      `${what} of ${spans.map(({ name, service }) => `${service}: ${name}`).join()}`,
    );
    return found[0] as (typeof spans)[number];
  };

  it("show a creation below the client's request, and its parts add up to its time", () => {
    const create = only(({ name }) => name === "sandbox.create", "a creation");
    const request = only(({ spanId }) => spanId === create.parentSpanId, "its request");
    assert.match(request.name, /^POST \/(?:v\d\/)?sandboxes$/);
    assert.deepEqual([request.traceId, request.parentSpanId], [creating.traceId, creating.spanId]);
    assert.equal(create.traceId, creating.traceId);
    assert.equal(attributeOf(request, "http.response.status_code"), 201);
    assert.equal(attributeOf(create, "coppice.backend"), "local-process");
    assert.ok(msOf(create) <= msOf(request));
    const parts = spans.filter(({ parentSpanId }) => parentSpanId === create.spanId);
    assert.deepEqual(
      parts
        .toSorted((one, other) => (BigInt(one.startTimeUnixNano) < BigInt(other.startTimeUnixNano) ? -1 : 1))
        .map(({ name }) => name),
      ["reserve", "wait", "write", "provision", "write", "tell"],
    );
    const inPartsMs = parts.reduce((sum, part) => sum + msOf(part), 0);
    const ownMs = Number(attributeOf(create, "coppice.own_ms"));
    const differenceMs = Math.abs(msOf(create) - inPartsMs - ownMs);
    assert.ok(differenceMs < 3, `${inPartsMs} ms in parts and ${ownMs} ms beside them of ${msOf(create)} ms`);
    assert.ok(ownMs < msOf(create) / 2, `${ownMs} of ${msOf(create)} ms are in no part`);
  });

  it("go on in the request that another server of the fleet gets", () => {
    const passed = spans.findLast(
      ({ service, traceId }) => service === "second" && traceId === reading.traceId,
    );
    assert.ok(passed);
    assert.deepEqual([passed.name, passed.parentSpanId], ["GET peer", reading.spanId]);
    const served = only(({ parentSpanId }) => parentSpanId === passed.spanId, "a request that was passed on");
    assert.deepEqual([served.service, served.name], ["first", "GET /sandboxes/:id"]);
  });

  it("are named in a delivery to a webhook", () => {
    const delivery = only(({ name }) => name === "webhook.deliver", "a delivery");
    assert.deepEqual(
      delivery.links?.map(({ traceId }) => traceId),
      [creating.traceId],
    );
    assert.equal(webhookTrace, `00-${delivery.traceId}-${delivery.spanId}-01`);
  });
});
