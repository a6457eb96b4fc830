import assert from "node:assert/strict";
import { it } from "node:test";
import { memoryBackend, startTestServer } from "@coppice/core/testing";
import plugin from "./plugin.js";

it("tells how long a sandbox lives, and refuses one that ends too soon", async () => {
  await using server = await startTestServer({
    plugins: [[memoryBackend()], [plugin, { leastSeconds: 120 }]],
  });
  const answerFor = async (timeoutMs: number) => {
    const { record } = await server.sandboxes.create({ template: "base", timeoutMs, secure: false });
    const answer = await fetch(`${server.url}/{{plugin}}/${record.id}`);
    return { status: answer.status, body: (await answer.json()) as Record<string, unknown> };
  };
  const long = await answerFor(300_000);
  assert.equal(long.status, 200);
  assert.ok(Number(long.body["secondsLeft"]) > 290);
  const short = await answerFor(60_000);
  assert.deepEqual([short.status, short.body["reason"]], [400, "{{plugin}}.ends_soon"]);
  const missing = await fetch(`${server.url}/{{plugin}}/nothere`);
  assert.equal(missing.status, 404);
});
