import assert from "node:assert/strict";
import { join } from "node:path";
import { describe, it } from "node:test";
import { eventually, startTestServer } from "@coppice/core/testing";
import commands, { Commands } from "@coppice/plugin-commands";
import localProcess from "@coppice/plugin-local-process";
import { API_KEY } from "../../harness/server/api-key.js";
import { exchange } from "../../harness/clients/exchange.js";
import { makeInstallation, ServerProcess } from "../../harness/server/server-process.js";

const COUNT = "i=0; while true; do echo line $i; i=$((i+1)); done";

describe("the output log of a server that is killed", { timeout: 240_000 }, () => {
  it("has everything up to a moment before kill -9, without a gap, for the next server", async () => {
    const installation = await makeInstallation();
    const first = await ServerProcess.start(installation.configFile);
    try {
      const { id, headers, commandId } = await startCounting(first);
      // Enough output for several segments, of which some are finished and the last one is not.
      const path = `/commands/${commandId}/logs?limit=4&cursor=9000000`;
      const seen = await eventually(
        "9 MB of output in the log",
        async () => {
          const { next_cursor, bytes } = (await exchange(first.url, { path, headers })).json() as {
            readonly next_cursor: number;
            readonly bytes: string;
          };
          return bytes.length > 0 ? next_cursor : undefined;
        },
        30_000,
      );
      first.signal("SIGKILL");
      await first.ended;

      await using second = await startTestServer({
        dataDir: join(installation.directory, "data"),
        plugins: [
          [commands, {}],
          [localProcess, {}],
        ],
      });
      const log = second.resolve(Commands).log(id);
      const command = await log.find({ id: commandId });
      assert.equal(command.phase, "lost");
      assert(command.outputBytes >= seen, `${command.outputBytes} bytes are kept, ${seen} were seen`);
      let text = "";
      for (let cursor = 0; cursor < command.outputBytes;) {
        const page = await log.page(commandId, { cursor, limitBytes: 2 ** 20 });
        assert.equal(page.truncatedBefore, undefined);
        text += Buffer.concat(page.pieces.map(({ data }) => data)).toString();
        cursor = page.nextCursor;
      }
      const lines = text.slice(0, text.lastIndexOf("\n")).split("\n");
      assert.equal(
        lines.findIndex((line, at) => line !== `line ${at}`),
        -1,
        "each line follows the one before",
      );
      assert.equal((await fetch(`${second.urls["ops"]}/readyz`)).status, 200);
    } finally {
      first.signal("SIGKILL");
      await first.ended;
      await installation.remove();
    }
  });
});

async function startCounting(server: ServerProcess) {
  const created = await exchange(server.url, {
    method: "POST",
    path: "/v2/sandboxes",
    headers: { "x-api-key": API_KEY, "content-type": "application/json" },
    body: '{"templateID":"base"}',
  });
  const { sandboxID: id, envdAccessToken: token } = created.json() as {
    readonly sandboxID: string;
    readonly envdAccessToken: string;
  };
  const headers = { "e2b-sandbox-id": id, "e2b-sandbox-port": "49983", "x-access-token": token };
  const gone = new AbortController();
  const started = await fetch(`${server.url}/commands`, {
    method: "POST",
    headers: { ...headers, "content-type": "application/json" },
    body: JSON.stringify({ cmd: COUNT, timeout_ms: 0 }),
    signal: gone.signal,
  });
  const reader = started.body?.getReader();
  const line = Buffer.from((await reader?.read())?.value ?? []).toString();
  const { pid } = JSON.parse(line.split("\n")[0] ?? "") as { pid: number };
  // Without a reader the command runs as fast as the log takes its output.
  gone.abort();
  const logs = await exchange(server.url, { path: `/commands/${pid}/logs?limit=4`, headers });
  const { command_id: commandId } = logs.json() as { command_id: string };
  return { id, headers, commandId };
}
