import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { Process, TerminalSize } from "@coppice/core/backend";
import type { ConformanceCase } from "../kit/conformance-case.js";
import type { ConformanceContext, ScriptOptions } from "../kit/conformance-context.js";
import { OutputReader } from "../kit/output-reader.js";
import { expectToWait } from "../kit/slow-reader.js";

const SIZE: TerminalSize = { columns: 71, rows: 13 };
const CONTROL_C = Buffer.from("\x03");
const RAW_BYTES = 70_000;

export const terminalCases: readonly ConformanceCase[] = [
  {
    name: "stdin, stdout and stderr are one terminal, whose output is one stream",
    group: "terminal",
    needs: ["terminals", { program: "tty" }],
    async run(context) {
      const { reader, process } = await open(
        context,
        "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && tty; echo err >&2",
      );
      assert.match((await reader.end()).toString(), /^\/dev\/\S+\r\nerr\r\n$/);
      assert.deepEqual([...reader.streams], ["terminal"]);
      assert.deepEqual(await process.exit, { code: 0 });
    },
  },
  {
    name: "a terminal has the size that was asked for",
    group: "terminal",
    needs: ["terminals", { program: "stty" }],
    async run(context) {
      for (const terminal of [SIZE, { columns: 1, rows: 1 }, { columns: 500, rows: 200 }]) {
        const { reader } = await open(context, "stty size", { terminal });
        assert.equal((await reader.end()).toString(), `${terminal.rows} ${terminal.columns}\r\n`);
      }
    },
  },
  {
    name: "a new size is visible, and signalled by SIGWINCH",
    group: "terminal",
    needs: ["terminals", { program: "stty" }],
    async run(context) {
      const script = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.02; done";
      const { reader, process } = await open(context, script);
      await reader.sees(/ready/);
      await process.resize({ columns: 132, rows: 50 });
      await reader.sees(/^50 132\r$/m);
      await process.resize({ columns: 20, rows: 5 });
      await reader.sees(/^5 20\r$/m);
      await process.kill("SIGKILL", "group");
    },
  },
  {
    name: "a terminal is the controlling one of its command",
    group: "terminal",
    needs: ["terminals"],
    async run(context) {
      const script =
        "exec > /dev/null 2>&1; echo direct > /dev/tty; " +
        "{ cut -d ' ' -f 6 /proc/$$/stat || ps -o sid= -p $$ | tr -d ' '; } > /dev/tty";
      const { reader, process } = await open(context, script);
      assert.equal((await reader.end()).toString(), `direct\r\n${process.pid}\r\n`);
    },
  },
  {
    name: "Ctrl-C interrupts the program in the foreground",
    group: "terminal",
    needs: ["terminals"],
    async run(context) {
      const caught = await open(
        context,
        "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.02; done",
      );
      await caught.reader.sees(/ready/);
      await caught.process.write(CONTROL_C);
      await caught.reader.sees(/caught/);
      assert.deepEqual(await caught.process.exit, { code: 7 });
      const plain = await open(context, "echo ready; exec sleep 300");
      await plain.reader.sees(/ready/);
      await plain.process.write(CONTROL_C);
      assert.equal((await context.within(2_000, "it ends", plain.process.exit)).signal, "SIGINT");
    },
  },
  {
    name: "Ctrl-C spares what runs in the background",
    group: "terminal",
    needs: ["terminals"],
    async run(context) {
      const script = `
        set -m; trap : INT
        sleep 300 & job=$!
        echo ready; sleep 301
        kill -0 $job && echo spared; kill -9 $job`;
      const { reader, process } = await open(context, script);
      await reader.sees(/ready/);
      // The second sleep may not be in the foreground yet.
      const typing = (async () => {
        while (!/spared|No such/.test(reader.text)) {
          await process.write(CONTROL_C).catch(() => undefined);
          await sleep(200);
        }
      })();
      await reader.sees(/spared/);
      await typing;
      await reader.end();
    },
  },
  {
    name: "input comes in lines, with its corrections, and is echoed",
    group: "terminal",
    needs: ["terminals"],
    async run(context) {
      const { reader, process } = await open(context, 'echo ready; read -r line; echo "got $line"');
      await reader.sees(/ready/);
      await process.write(Buffer.from("abX\x7fc"));
      await process.write(Buffer.from("\r"));
      await reader.sees(/got abc\r\n$/);
      assert.match(reader.text, /ready\r\nabX[^\n]*c\r\ngot/);
    },
  },
  {
    name: "the end of input is an end of file",
    group: "terminal",
    needs: ["terminals", { program: "stty" }],
    async run(context) {
      const { reader, process } = await open(context, "stty -echo; echo ready; cat; echo over");
      await reader.sees(/ready/);
      await process.write(Buffer.from("line\n"));
      await reader.sees(/line/);
      await process.closeInput();
      await process.closeInput();
      assert.equal((await reader.end()).toString(), "ready\r\nline\r\nover\r\n");
      assert.deepEqual(await process.exit, { code: 0 });
      await context.refuses(process.write(Buffer.from("late")), "failed_precondition");
    },
  },
  {
    name: "TERM is the command's variable, and unset without one",
    group: "terminal",
    needs: ["terminals"],
    async run(context) {
      const terminalOf = async (env: Record<string, string>): Promise<string | undefined> => {
        const started = await context.startProgram("env", [], { terminal: SIZE, env });
        const { stdout } = await context.finish(started);
        return /^TERM=(.*)\r$/m.exec(stdout.toString())?.[1];
      };
      assert.equal(await terminalOf({ TERM: "xterm-256color" }), "xterm-256color");
      assert.equal(await terminalOf({}), undefined);
    },
  },
  {
    name: "all output of a program comes before the end, and its exit code after it",
    group: "terminal",
    needs: ["terminals"],
    async run(context) {
      const script = "head -c 300000 /dev/zero | tr '\\000' x; exit 43";
      for (let round = 0; round < 5; round++) {
        const { reader, process } = await open(context, script);
        const bytes = await reader.end();
        assert.equal(bytes.byteLength, 300_000);
        assert.deepEqual(await process.exit, { code: 43 });
      }
    },
  },
  {
    name: "the output ends with the program, although a child still has the terminal",
    group: "terminal",
    needs: ["terminals"],
    async run(context) {
      const { reader, process } = await open(context, "trap '' HUP; sleep 300 & echo over; exit 43");
      assert.equal((await reader.end(2_000)).toString(), "over\r\n");
      assert.deepEqual(await process.exit, { code: 43 });
    },
  },
  {
    name: "in raw mode every byte goes in and comes out as it is",
    group: "terminal",
    needs: ["terminals", { program: "stty" }],
    async run(context) {
      const every = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
      const blob = Buffer.concat([every, randomBytes(RAW_BYTES - every.byteLength)]);
      const script = 'stty raw -echo; printf ready; head -c "$1"; printf over';
      const { reader, process } = await open(context, script, { args: [String(blob.byteLength)] });
      await reader.sees(/^ready/);
      await context.within(10_000, "the bytes are taken", process.write(blob));
      const bytes = await reader.end(10_000);
      assert.equal(bytes.byteLength, RAW_BYTES + "readyover".length);
      assert.ok(bytes.subarray("ready".length, -"over".length).equals(blob), "the bytes differ");
    },
  },
  {
    name: "two terminals are separate: each has its own name, size and output",
    group: "terminal",
    needs: ["terminals", { program: "tty" }, { program: "stty" }],
    async run(context) {
      const script = 'tty; stty size; echo "$1"; exec sleep 300';
      const one = await open(context, script, { args: ["one"] });
      const two = await open(context, script, { args: ["two"], terminal: { columns: 9, rows: 8 } });
      const [, nameOfOne] = await one.reader.sees(/^(\/dev\S+)\r\n13 71\r\none\r\n$/);
      const [, nameOfTwo] = await two.reader.sees(/^(\/dev\S+)\r\n8 9\r\ntwo\r\n$/);
      assert.notEqual(nameOfOne, nameOfTwo);
      await one.process.kill("SIGKILL");
      await two.process.kill("SIGKILL");
    },
  },
  {
    name: "a terminal belongs to the user of its command",
    group: "terminal",
    needs: ["terminals", "accounts", { program: "tty" }],
    async run(context) {
      for (const user of [context.user.name, "root"]) {
        const script = '[ -O "$(tty)" ] && echo own; echo again > "$(tty)"';
        const { reader } = await open(context, script, { user });
        assert.equal((await reader.end()).toString(), "own\r\nagain\r\n");
      }
    },
  },
  {
    name: "a slow reader slows a program that writes to a terminal",
    group: "terminal",
    needs: ["terminals"],
    async run(context) {
      const script = "i=0; while :; do printf '%065536d' 0; i=$((i + 64)); echo $i > progress; done";
      const writer = await context.start(script, { terminal: SIZE });
      const output = writer.output[Symbol.asyncIterator]();
      await output.next();
      await expectToWait(context, {
        mostKiB: 4_096,
        async writtenKiB() {
          const written = await context.read(context.home("progress")).catch(() => Buffer.from("0"));
          return Number(written.toString());
        },
        take: async () => (await output.next()).value?.data,
      });
      await writer.kill("SIGKILL");
      await output.return?.();
    },
  },
];

async function open(
  context: ConformanceContext,
  script: string,
  options: ScriptOptions = {},
): Promise<{ readonly process: Process; readonly reader: OutputReader }> {
  const process = await context.start(script, { terminal: SIZE, ...options });
  return { process, reader: new OutputReader(process) };
}
