import assert from "node:assert/strict";
import { it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { CommandExitError, Sandbox } from "@e2b/code-interpreter";
import { API_KEY } from "../../harness/server/api-key.js";
import { exchange } from "../../harness/clients/exchange.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { Scrape } from "../../harness/clients/scrape.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

interface Event {
  readonly type: string;
  readonly eventData?: { readonly reason?: string };
}

const textOf = (failing: Promise<unknown>): Promise<string> =>
  failing.then(
    () => "nothing",
    (error: unknown) =>
      error instanceof CommandExitError ? `${error.exitCode} ${error.error}` : String(error),
  );

const skip = missingForNamespaces();

it(
  "what a command, a cell or a sandbox lacked is told to its client, in an event and in metrics",
  { skip, timeout: 240_000 },
  async () => {
    await using server = await startFullServer({
      backend: "linux-namespaces",
      settings: { "linux-namespaces": { limits: { memoryMiB: 512, processes: 128, diskMiB: 64 } } },
    });
    pointSdkAt(server.url);
    const ask = async (path: string) => exchange(server.url, { path, headers: { "x-api-key": API_KEY } });
    const eventsOf = async (id: string): Promise<readonly string[]> =>
      ((await ask(`/events/sandboxes/${id}`)).json() as readonly Event[]).map(
        ({ type, eventData }) => `${type} ${eventData?.reason ?? ""}`,
      );
    const sandbox = await Sandbox.create();
    const memory = "(out of memory: limit 512 MiB)";
    const big = "dd if=/dev/zero of=/dev/null bs=1G count=1";
    assert.equal(await textOf(sandbox.commands.run(`exec ${big}`)), `-1 signal: killed ${memory}`);
    assert.equal(await textOf(sandbox.commands.run(`${big}; exit $?`)), `137 exit status 137 ${memory}`);
    assert.equal(await textOf(sandbox.commands.run("exit 3")), "3 exit status 3");
    const { error } = await sandbox.runCode("held = bytearray(1 << 30)");
    assert.deepEqual([error?.name, error?.value], ["ContextRestarting", `Context was restarted ${memory}`]);
    const forks =
      'python3 -c \'import os\nfor _ in range(200): os.fork() or os.execvp("sleep", ["sleep", "1"])\'';
    assert.equal(await textOf(sandbox.commands.run(forks)), "1 exit status 1 (out of processes: limit 128)");
    await eventually("both are told of", async () => {
      const events = await eventsOf(sandbox.sandboxId);
      // Once a minute, however often.
      return ["memory: limit 512 MiB", "processes: limit 128"].every(
        (reason) => events.filter((event) => event === `sandbox.lifecycle.exhausted ${reason}`).length === 1,
      );
    });
    await sandbox.kill();

    const full = await Sandbox.create();
    const filling = textOf(full.commands.run("dd if=/dev/zero of=big bs=1M count=300; sleep 300"));
    assert.match(await filling, /the sandbox ended while the command ran: it used more disk than it may/);
    await eventually("its end is told of", async () =>
      (await eventsOf(full.sandboxId)).includes("sandbox.lifecycle.killed out of disk"),
    );
    const scraped = await Scrape.of(server.urls["ops"] ?? "");
    const counted = (resource: string): number =>
      scraped.sum("coppice_sandboxes_shortages_total", `tenant="default",resource="${resource}"`);
    assert.deepEqual([counted("memory"), counted("processes"), counted("disk")], [3, 1, 1]);
  },
);
