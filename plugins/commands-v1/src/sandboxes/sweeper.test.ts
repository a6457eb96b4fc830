import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import type { Logger } from "@coppice/core";
import { fakeClock, memoryBackend, startTestServer } from "@coppice/core/testing";
import commands, { Commands } from "@coppice/plugin-commands";
import { commandsV1Config } from "../commands-v1-config.js";
import { CommandsV1Store } from "../store/commands-v1-store.js";
import { Sweeper } from "./sweeper.js";
import { NamedSandboxes } from "./named-sandboxes.js";

it("An overdue sandbox is deleted although another task fails, and a third hangs", async () => {
  const dataDir = await mkdtemp(join(tmpdir(), "coppice-v1-sweeper-"));
  const clock = fakeClock();
  const database = new CommandsV1Store(dataDir);
  {
    await using server = await startTestServer({
      clock,
      plugins: [
        [commands, {}],
        [memoryBackend(), {}],
      ],
    });
    const { sandboxes } = server;
    const store = () => database.sandboxes;
    const named = new NamedSandboxes({ store, sandboxes, commands: server.resolve(Commands), clock });
    let failures = 0;
    let begun = 0;
    const sweeper = new Sweeper({
      store,
      named,
      sandboxes,
      clock,
      log: {
        error: () => (failures += 1),
        warn: () => undefined,
        info: () => undefined,
      } as unknown as Logger,
      config: commandsV1Config.parse({}),
      tasks: [
        () => {
          throw new Error("the disk is full");
        },
        () => {
          begun += 1;
          return new Promise(() => undefined);
        },
      ],
    });
    const wanted = { template: "base", timeoutMs: undefined, secure: false };
    const life = {
      owner: "default",
      name: undefined,
      tier: "ephemeral",
      autoStopMs: 0,
      workdir: undefined,
    } as const;
    const sandbox = await named.create({ ...life, deadlineMs: clock.now() + 1_000 }, () =>
      sandboxes.create(wanted),
    );
    sweeper.start();
    for (let look = 0; look < 3; look += 1) await clock.advance(10_000);
    for (let tries = 0; sandboxes.list().length > 0; tries += 1) {
      assert.ok(tries < 100, `${sandbox.record.id} is left`);
      await new Promise((resolve) => setImmediate(resolve));
    }
    assert.deepEqual([failures, begun], [3, 1]);
    sweeper.stop();
  }
  database.close();
  await rm(dataDir, { recursive: true });
});
