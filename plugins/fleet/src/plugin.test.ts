import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { definePlugin } from "@coppice/core";
import { startTestServer } from "@coppice/core/testing";
import { plugin as fleet } from "./plugin.js";

const LOOPBACK = { host: "127.0.0.1", port: 0 };

const routes = definePlugin({
  name: "routes",
  setup: (context) => void context.http("api").get("/open", (ctx) => void (ctx.body = "open")),
});

describe("a server that is to be one of a fleet", () => {
  let directory: string;
  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
  });
  after(() => rm(directory, { recursive: true }));

  const start = (listeners: object, address = "http://127.0.0.1:1"): Promise<unknown> => {
    const file = join(directory, "fleet.sqlite");
    const settings = { node: "one", address, secret: "5eed".repeat(16), file };
    return startTestServer({ server: { listeners }, plugins: [[routes], [fleet, settings]] });
  };

  it("does not take the fleet for an authentication of clients", async () => {
    await assert.rejects(
      start({ api: { host: "0.0.0.0", port: 0 }, fleet: LOOPBACK }),
      /surface 'api' has no authentication/,
    );
  });

  it("needs a listener for the others, and TLS there unless its operator says otherwise", async () => {
    await assert.rejects(
      start({ api: LOOPBACK }),
      /listeners has no 'fleet'|has a surface 'fleet'|no listener/,
    );
    await assert.rejects(start({ api: LOOPBACK, fleet: { host: "0.0.0.0", port: 0 } }), /without TLS/);
    for (const address of ["http://10.0.0.1:3100", "http://[2001:db8::1]:3100", "http://a.example"])
      await assert.rejects(
        start({ api: LOOPBACK, fleet: LOOPBACK }, address),
        /fleet\.address is .* without TLS/,
      );
  });
});
