import assert from "node:assert/strict";
import { it } from "node:test";
import { setImmediate } from "node:timers/promises";
import type { AgentConnection } from "@coppice/agent";
import { JailSandbox, type JailSandboxOptions } from "./jail-sandbox.js";
import { JexecCommands } from "./jails/jexec-helpers.js";

it("a command does not enter the jail between the begin of a pause and the resumption", async () => {
  const calls: string[] = [];
  const never = new Promise<void>(() => {});
  let answered = Promise.withResolvers<void>();
  const agent = { closed: never, user: () => answered.promise } as unknown;
  const started = { closed: never, spawn: async () => void calls.push("enter") } as unknown;
  const jails = { pause: async () => void calls.push("stop"), resume: async () => void calls.push("go on") };
  const options: Partial<JailSandboxOptions> = {
    jail: {
      agent: agent as AgentConnection,
      helper: new JexecCommands(started as AgentConnection),
      link: undefined,
    },
    jails: jails as Partial<JailSandboxOptions["jails"]> as JailSandboxOptions["jails"],
  };
  const sandbox = new JailSandbox(options as JailSandboxOptions);
  const spawned = sandbox.spawn({ path: "true", args: [], env: {} });
  await setImmediate();
  await sandbox.pausing.pause();
  answered.resolve();
  answered = Promise.withResolvers();
  for (let turn = 0; turn < 10; turn++) await setImmediate();
  assert.deepEqual(calls, ["stop"], "it ran in a paused jail");
  await sandbox.pausing.resume();
  answered.resolve();
  await spawned;
  assert.deepEqual(calls, ["stop", "go on", "enter"]);
});
