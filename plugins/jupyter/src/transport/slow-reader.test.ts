import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { startCodeServer, type CodeSandbox, type CodeServer } from "../testing/code-server.js";

const MESSAGES = 3000;
const MESSAGE_BYTES = 30_000;
/** Size of all messages, with their headers and signatures. */
const FLOOD_MIB = (MESSAGES * (MESSAGE_BYTES + 900)) / 2 ** 20;
const FLOOD = [
  "from IPython.display import display",
  `for i in range(${MESSAGES}): display({'text/plain': f'{i:0${MESSAGE_BYTES}}'}, raw=True)`,
  "print('done')",
].join("\n");

interface Line {
  readonly type: string;
  readonly text?: string;
}

/** Processor time of a process, in clock ticks. */
async function ticksOf(pid: number): Promise<number> {
  const fields = (await readFile(`/proc/${pid}/stat`, "utf8")).split(") ")[1]?.split(" ") ?? [];
  return Number(fields[11]) + Number(fields[12]);
}

/** Waits until a process uses no processor time any more. */
async function standsStill(pid: number): Promise<void> {
  for (let before = -1, now = await ticksOf(pid); now !== before; now = await ticksOf(pid)) {
    before = now;
    await delay(400);
  }
}

const rssMiB = (): number => process.memoryUsage.rss() / 2 ** 20;

async function* linesOf(response: Response): AsyncGenerator<Line, void, undefined> {
  let rest = "";
  for await (const chunk of response.body ?? []) {
    rest += Buffer.from(chunk as Uint8Array).toString("latin1");
    const lines = rest.split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) yield JSON.parse(line) as Line;
  }
}

for (const transport of ["zeromq", "zmtp"]) {
  describe(`a kernel that floods a reader that does not read, over ${transport}`, () => {
    let own: CodeServer;
    let sandbox: CodeSandbox;

    before(async () => {
      own = await startCodeServer({ transport, maxOutput: "1GiB" });
      sandbox = await own.create();
    });
    after(() => own[Symbol.asyncDispose]());

    it(
      "waits, in bounded memory, and no idle is ever dropped: every message arrives, and the cell ends",
      { skip: process.platform !== "linux" && "it reads /proc" },
      async () => {
        const pid = Number((await sandbox.run("import os; os.getpid()")).results[0]?.["text"]);
        const before = rssMiB();
        const response = await sandbox.fetch("/execute", {
          method: "POST",
          body: JSON.stringify({ code: FLOOD }),
          signal: AbortSignal.timeout(50_000),
        });
        await standsStill(pid);
        const grownMiB = rssMiB() - before;
        assert.ok(grownMiB < FLOOD_MIB / 2, `the server took ${grownMiB} of ${FLOOD_MIB} MiB`);
        let shown = 0;
        const others: Line[] = [];
        for await (const line of linesOf(response)) {
          if (line.type === "result") assert.equal(Number(line.text), shown++);
          else others.push(line);
        }
        assert.equal(shown, MESSAGES);
        assert.deepEqual(
          others.filter(({ type }) => type !== "keepalive").map(({ type, text }) => text ?? type),
          ["number_of_executions", "done\n", "end_of_execution"],
        );
        assert.equal((await sandbox.run("1+1")).results[0]?.["text"], "2");
      },
    );
  });
}
