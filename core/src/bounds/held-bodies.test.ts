import assert from "node:assert/strict";
import { type ClientRequest, type IncomingMessage, request } from "node:http";
import { after, before, describe, it } from "node:test";
import { readBody } from "../http/messages/json-body.js";
import { definePlugin } from "../plugin/plugin.js";
import { memoryBackend } from "../testing/memory-backend.js";
import { startTestServer, type TestServer } from "../testing/start-test-server.js";

const MEBIBYTE = 1024 * 1024;
const routes = definePlugin({
  name: "routes",
  setup(plugin) {
    plugin.http("api", { errors: "e2b" }).post("/whole", async (ctx) => {
      ctx.body = String((await readBody(ctx.req, 4 * MEBIBYTE)).length);
    });
  },
});

describe("bodies that are read whole", { timeout: 60_000 }, () => {
  let server: TestServer;
  before(async () => {
    const http = { maxHeldBodies: "1MiB" };
    server = await startTestServer({ plugins: [[memoryBackend(), {}], [routes]], server: { http } });
  });
  after(() => server.stop());

  interface Begun {
    readonly sent: ClientRequest;
    readonly status: Promise<number | undefined>;
  }

  /** A request whose last byte is kept back. A refusal comes before that. */
  async function begin(bytes: number): Promise<Begun> {
    const headers = { "content-length": bytes };
    const sent = request(new URL("/whole", server.url), { method: "POST", agent: false, headers });
    const { promise: status, resolve } = Promise.withResolvers<number | undefined>();
    sent.once("response", (response: IncomingMessage) => {
      resolve(response.statusCode);
      response.resume();
    });
    sent.on("error", () => resolve(undefined));
    await new Promise<unknown>((written) => sent.write(Buffer.alloc(bytes - 1), written));
    return { sent, status };
  }

  function answer({ sent, status }: Begun): Promise<number | undefined> {
    sent.end("x");
    return status;
  }

  it("have room together; one that finds none is refused, small ones are not, and what ends gives back", async () => {
    const first = await begin(700 * 1024);
    const second = await begin(700 * 1024);
    const statuses = await Promise.all([answer(first), answer(second)]);
    assert.deepEqual(new Set(statuses), new Set([200, 503]));
    assert.equal(await answer(await begin(900 * 1024)), 200, "room that was given back");

    const left = await begin(900 * 1024);
    left.sent.destroy();
    await new Promise((resolve) => left.sent.once("close", resolve));
    // The server hears of it a moment later.
    const until = Date.now() + 5000;
    while ((await answer(await begin(900 * 1024))) !== 200)
      assert.ok(Date.now() < until, "room of a client that left");

    const full = await begin(1000 * 1024);
    assert.equal(await answer(await begin(60 * 1024)), 200, "a small one");
    assert.equal(await answer(full), 200);
    assert.equal(await answer(await begin(2 * MEBIBYTE)), 503, "one that is larger than the room");
  });
});
