import assert from "node:assert/strict";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { CommandExitError, Sandbox } from "@e2b/code-interpreter";
import { eventually, type TestServer } from "@coppice/core/testing";
import { API_KEY } from "../../harness/server/api-key.js";
import { exchange } from "../../harness/clients/exchange.js";
import {
  AGENT_INSIDE,
  type FreebsdHost,
  openFreebsdHost,
  reasonWithoutFreebsdHost,
} from "../../harness/freebsd/freebsd-host.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { Scrape } from "../../harness/clients/scrape.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

interface Event {
  readonly type: string;
  readonly eventData?: { readonly reason?: string };
}

/** A server, and a way to end one of its sandboxes behind its back. */
interface Scene {
  readonly server: TestServer;
  readonly lose: (sandboxId: string) => Promise<void>;
}

async function endsForEverybody({ server, lose }: Scene): Promise<void> {
  pointSdkAt(server.url);
  const ask = async (path: string) => exchange(server.url, { path, headers: { "x-api-key": API_KEY } });
  const sandbox = await Sandbox.create();
  const { sandboxId } = sandbox;
  // The end of a process is not the end of its sandbox.
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
  await lose(sandboxId);

  // The client may hear of the command's end first, or of the sandbox's.
  assert.match(
    await told,
    /the sandbox ended while|signal: (killed|terminated)|was killed or reached its end of life/,
  );
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
}

describe("a sandbox whose first process dies", { skip: missingForNamespaces(), timeout: 240_000 }, () => {
  it("has ended for everybody at once: its streams, its routes, its events and the metrics say so", async () => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-lost-"));
    try {
      await using server = await startFullServer({
        backend: "linux-namespaces",
        settings: { "linux-namespaces": { directory } },
      });
      const lose = async (sandboxId: string) => {
        // Written by the launcher: its pid and when it began.
        const [pid] = (await readFile(join(directory, "sandboxes", sandboxId, "init"), "utf8")).split(" ");
        process.kill(Number(pid), "SIGKILL");
      };
      await endsForEverybody({ server, lose });
    } finally {
      await rm(directory, { recursive: true, force: true });
    }
  });
});

describe("a jail that somebody else removes", { skip: reasonWithoutFreebsdHost() ?? false }, () => {
  let host: FreebsdHost;
  const ways = {
    "by hand": async (sandboxId: string) => {
      await host.run(host.settings.programs.jail, "-q", "-R", `e2b-${sandboxId}`);
    },
    "by the end of its agent": async (sandboxId: string) => {
      const agents = join(AGENT_INSIDE, "coppice-agent listen");
      const kill = ["-l", `e2b-${sandboxId}`, "/usr/bin/pkill", "-9", "-f", agents];
      // The jail may be removed, and this with it, before it has ended.
      await host.run(host.settings.programs.jexec, ...kill).catch(() => undefined);
    },
    "by the end of its helper": async (sandboxId: string) => {
      await host.run("/usr/bin/pkill", "-9", "-f", `coppice-agent listen 3 .* e2b-${sandboxId} `);
    },
  };

  before(async () => {
    host = await openFreebsdHost();
  });
  after(() => host[Symbol.asyncDispose]());

  for (const [way, lose] of Object.entries(ways)) {
    it(
      `has ended for everybody at once, and nothing of it is left: ${way}`,
      { timeout: 240_000 },
      async () => {
        await using server = await startFullServer({ backend: "jail-freebsd", host });
        await endsForEverybody({ server, lose });
        await eventually("nothing is left", async () => (await host.leaks()).length === 0);
      },
    );
  }
});
