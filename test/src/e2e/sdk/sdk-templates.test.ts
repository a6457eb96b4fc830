import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import type { TestServer } from "@coppice/core/testing";
import { Template } from "e2b";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

describe("templates through the e2b SDK", { timeout: 240_000 }, () => {
  let server: TestServer;

  before(async () => {
    const templates = { "base": { aliases: ["alias-of-base"] }, "code-interpreter-v1": {} };
    server = await startFullServer({ server: { sandboxes: { templates } } });
    pointSdkAt(server.url);
  });
  after(() => server.stop());

  it("A.6 Template.exists tells those that there are", async () => {
    for (const [name, exists] of [
      ["base", true],
      ["alias-of-base", true],
      ["code-interpreter-v1", true],
      ["no-such-template", false],
    ] as const) {
      assert.equal(await Template.exists(name), exists, name);
    }
  });

  it("A.6 Template.getTags tells the only tag of a configured one", async () => {
    const tags = await Template.getTags("base");
    assert.deepEqual(
      tags.map(({ tag }) => tag),
      ["default"],
    );
  });

  it("A.6 Template.build fails with the reason", async () => {
    const template = Template().fromBaseImage().runCmd("true");
    await assert.rejects(Template.build(template, "mine"), /this server does not build templates by API/);
  });
});
