import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { SandboxError } from "@coppice/core";
import type { AgentConnection } from "./agent-connection.js";
import type { AgentProcess } from "./agent-process.js";
import { startHostAgent } from "./start-host-agent.js";
import { binaryKinds, withoutRoot } from "./testing/agent-kinds.js";
import { env, finish, shell } from "./testing/run.js";

const terminal = { columns: 71, rows: 13 };

for (const { name, binary, skip } of binaryKinds) {
  describe(`a terminal of ${name}`, { skip }, () => {
    let agent: AgentConnection;

    before(async () => {
      agent = await startHostAgent({ binary });
    });

    after(() => agent.close());

    function start(script: string): Promise<AgentProcess> {
      return agent.spawn({ path: "/bin/sh", args: ["-c", script], env, cwd: "/", terminal });
    }

    it("is the controlling terminal of its program, with its size and name", async () => {
      const script =
        "tty; stty size; test -t 0 && test -t 1 && test -t 2 && echo all; : < /dev/tty && echo own";
      const { exit, terminal: seen } = await shell(agent, script, { terminal });
      assert.match(seen.toString(), /^\/dev\/pts\/\d+\r\n13 71\r\nall\r\nown\r\n$/);
      assert.deepEqual(exit, { code: 0 });
    });

    it("belongs to the user of its program", { skip: withoutRoot }, async () => {
      const { terminal: seen } = await shell(
        agent,
        `ls -l "$(tty)" | awk '{ print $3 }'; echo again > "$(tty)"`,
        {
          terminal,
          user: "nobody",
        },
      );
      assert.equal(seen.toString(), "nobody\r\nagain\r\n");
    });

    it("signals a new size to its program", async () => {
      const started = await start("trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.02; done");
      const output = started.output[Symbol.asyncIterator]();
      assert.equal(Buffer.from((await output.next()).value?.data ?? []).toString(), "ready\r\n");
      await started.resize({ columns: 132, rows: 50 });
      assert.equal(Buffer.from((await output.next()).value?.data ?? []).toString(), "50 132\r\n");
      assert.deepEqual(await started.exit, { code: 0 });
    });

    it("turns Ctrl-C into a signal, and the end of input into an end of file", async () => {
      const sleeping = await start("echo ready; exec sleep 300");
      const output = sleeping.output[Symbol.asyncIterator]();
      await output.next();
      await sleeping.write(Buffer.from("\x03"));
      assert.deepEqual(await sleeping.exit, { signal: "SIGINT" });
      const reading = await start("stty -echo; cat; echo over");
      await reading.write(Buffer.from("line\n"));
      await reading.closeInput();
      assert.match((await finish(reading)).terminal.toString(), /over\r\n$/);
      await assert.rejects(reading.write(Buffer.from("late")), SandboxError);
    });
  });
}
