import assert from "node:assert/strict";
import { it } from "node:test";
import { API_KEY } from "../../harness/server/api-key.js";
import { exchange } from "../../harness/clients/exchange.js";
import { onEachBackend } from "../../harness/server/on-each-backend.js";
import { ProcessClient } from "../../harness/clients/process-client.js";

const ASKED = 100;
/** Room for 40 more sandboxes: one exists before the burst. */
const MAXIMUM = 41;

onEachBackend(
  "a hundred creations at once",
  ({ server }) => {
    it("are made up to the maximum, and the others are refused with a Retry-After", async () => {
      const headers = { "x-api-key": API_KEY, "content-type": "application/json" };
      const answers = await Promise.all(
        Array.from({ length: ASKED }, () =>
          exchange(server().url, {
            method: "POST",
            path: "/v2/sandboxes",
            headers,
            body: JSON.stringify({ templateID: "base", timeout: 600 }),
          }),
        ),
      );
      const made = answers.filter(({ status }) => status === 201);
      for (const { status, headers: answered, text } of answers) {
        if (status === 201) continue;
        assert.ok(status === 429 || status === 503, `${status} ${text}`);
        assert.match(answered["retry-after"] ?? "", /^[1-9]\d*$/, text);
      }
      assert.equal(made.length, MAXIMUM - 1);
      const ids = made.map((answer) => (answer.json() as { readonly sandboxID: string }).sandboxID);
      assert.equal(new Set(ids).size, ids.length);
      await Promise.all(
        ids.map(async (id) => {
          const client = new ProcessClient(server().url, {
            "e2b-sandbox-id": id,
            "e2b-sandbox-port": "49983",
            "x-access-token": server().sandboxes.get(id).record.accessToken ?? "",
          });
          let output = "";
          let exitCode: number | undefined;
          for await (const event of client.start({ cmd: "/bin/echo", args: [id] }, "json")) {
            output += event.stdout?.toString() ?? "";
            exitCode = event.end ?? exitCode;
          }
          assert.deepEqual([output, exitCode], [`${id}\n`, 0]);
        }),
      );
      const ends = await Promise.all(
        ids.map((id) => exchange(server().url, { method: "DELETE", path: `/sandboxes/${id}`, headers })),
      );
      assert.deepEqual(new Set(ends.map(({ status }) => status)), new Set([204]));
    });
  },
  { server: { sandboxes: { maximum: MAXIMUM } } },
);
