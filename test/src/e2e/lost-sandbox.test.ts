import assert from "node:assert/strict";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { CommandExitError, Sandbox } from "@e2b/code-interpreter";
import { API_KEY } from "../harness/api-key.js";
import { eventually } from "../harness/eventually.js";
import { exchange } from "../harness/exchange.js";
import { missingForNamespaces } from "../harness/on-each-backend.js";
import { pointSdkAt } from "../harness/point-sdk-at.js";
import { Scrape } from "../harness/scrape.js";
import { startFullServer } from "../harness/start-full-server.js";

interface Event {
  readonly type: string;
  readonly eventData?: { readonly reason?: string };
}

describe("a sandbox whose first process dies", { skip: missingForNamespaces(), timeout: 60_000 }, () => {
  it("has ended for everybody at once: its streams, its routes, its events and the metrics say so", async () => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-lost-"));
    try {
      const server = await startFullServer({
        backend: "linux-namespaces",
        settings: { "linux-namespaces": { directory } },
      });
      await using _server = server;
      pointSdkAt(server.url);
      const ask = async (path: string) => exchange(server.url, { path, headers: { "x-api-key": API_KEY } });
      const sandbox = await Sandbox.create();
      const { sandboxId } = sandbox;
      // A process of it that the kernel or anybody ends is not the sandbox.
      await assert.rejects(
        sandbox.commands.run("kill -9 $$"),
        (error) => error instanceof CommandExitError && /signal: killed/.test(error.message),
      );
      assert.equal(await sandbox.isRunning(), true);
      const running = await sandbox.commands.run("sleep 300", { background: true });
      const told = running.wait().then(
        () => "nothing",
        (error: unknown) => String(error),
      );
      // Written by the launcher: its pid and when it began.
      const [pid] = (await readFile(join(directory, "sandboxes", sandboxId, "init"), "utf8")).split(" ");
      process.kill(Number(pid), "SIGKILL");

      // Of the command's end and that of its sandbox the client may hear either first.
      assert.match(await told, /signal: killed|was killed or reached its end of life/);
      await eventually("it does not run any more", async () => !(await sandbox.isRunning()));
      const killed = await eventually("it is told of", async () => {
        const events = (await ask(`/events/sandboxes/${sandboxId}`)).json() as readonly Event[];
        return events.find(({ type }) => type === "sandbox.lifecycle.killed");
      });
      assert.equal(killed.eventData?.reason, "backend lost");
      const { status, text } = await ask(`/sandboxes/${sandboxId}`);
      assert.equal(status, 404);
      assert.match(text, /sandbox not found: its backend lost it at \d{4}-/);
      assert.equal(await sandbox.kill(), false);
      const scraped = await Scrape.of(server.urls["ops"] ?? "");
      assert.equal(scraped.sum("coppice_sandboxes_ended_total", 'reason="backend lost"'), 1);
      assert.equal(scraped.sum("coppice_sandboxes_running"), 0);
    } finally {
      await rm(directory, { recursive: true, force: true });
    }
  });
});
