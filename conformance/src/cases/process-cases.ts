import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { Process } from "@coppice/core/backend";
import type { ConformanceCase } from "../kit/conformance-case.js";
import type { ConformanceContext } from "../kit/conformance-context.js";

const MEBIBYTE = 2 ** 20;

/** Start, input, output and end of programs. */
export const processCases: readonly ConformanceCase[] = [
  {
    name: "a process answers with exactly its bytes and its exit code",
    group: "process",
    async run(context) {
      const { exit, stdout, stderr } = await context.shell(
        "printf 'a\\000\\377\\n'; printf 'E' >&2; exit 43",
      );
      assert.deepEqual(stdout, Buffer.from([0x61, 0x00, 0xff, 0x0a]));
      assert.equal(stderr.toString(), "E");
      assert.deepEqual(exit, { code: 43 });
    },
  },
  {
    name: "stdout and stderr are apart and neither waits for the other",
    group: "process",
    async run(context) {
      const { stdout, stderr } = await context.shell(
        "head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2; echo out; echo err >&2",
      );
      assert.equal(stdout.byteLength, 300_004);
      assert.equal(stderr.byteLength, 300_004);
      assert.equal(stderr.subarray(-4).toString(), "err\n");
    },
  },
  {
    name: "a mebibyte of random bytes comes out as it is",
    group: "process",
    async run(context) {
      const blob = randomBytes(MEBIBYTE);
      await context.write(context.home("blob"), blob);
      const { stdout } = await context.shell("cat blob");
      assert.ok(stdout.equals(blob), "the bytes differ");
    },
  },
  {
    name: "arguments arrive as they are: no shell looks at them",
    group: "process",
    async run(context) {
      const args = ["", " two words ", "$HOME `id` $(id)", "a'b\"c\\", "line\nbreak", "-n", "*", "ünï ✓ 🎉"];
      const { stdout } = await context.shell('for each; do printf "%s\\0" "$each"; done', { args });
      assert.deepEqual(stdout.toString().split("\0").slice(0, -1), args);
    },
  },
  {
    name: "an argument may have 100 000 characters",
    group: "process",
    async run(context) {
      const { stdout } = await context.shell('printf %s "$1" | wc -c', { args: ["x".repeat(100_000)] });
      assert.equal(stdout.toString().trim(), "100000");
    },
  },
  {
    name: "an argument with a NUL byte is refused",
    group: "process",
    async run(context) {
      await context.refuses(context.start("true", { args: ["a\0b"] }), "invalid_argument");
    },
  },
  {
    name: "variables arrive as they are",
    group: "process",
    async run(context) {
      const env = { PLAIN: "a=b", EMPTY: "", UNICODE: "ünï ✓ 🎉", LINES: "one\ntwo", QUOTES: "'\"$HOME\\" };
      const names = Object.keys(env);
      const script = names.map((name) => `printf '%s\\0' "$${name}"`).join("; ");
      const { stdout } = await context.shell(script, { env });
      assert.deepEqual(stdout.toString().split("\0").slice(0, -1), Object.values(env));
    },
  },
  {
    name: "nothing of the server's own environment is inherited",
    group: "process",
    async run(context) {
      const secret = randomBytes(8).toString("hex");
      process.env["COPPICE_CONFORMANCE_SECRET"] = secret;
      try {
        const seen = await context.succeed("env; cat /proc/self/environ 2> /dev/null || true");
        assert.ok(!seen.includes(secret), "a variable of the server is visible");
      } finally {
        delete process.env["COPPICE_CONFORMANCE_SECRET"];
      }
    },
  },
  {
    name: "it starts in the home, which is where HOME points",
    group: "process",
    async run(context) {
      await context.write(context.home("marker"), "here");
      assert.equal(
        await context.succeed('cat marker; cd /; cat "$HOME/marker"; cd; cat marker'),
        "hereherehere",
      );
    },
  },
  {
    name: "it starts in the requested directory, through links as well",
    group: "process",
    async run(context) {
      await context.write(context.home("some dir/marker"), "here");
      await context.succeed("ln -s 'some dir' link");
      assert.equal(await context.succeed("cat marker", { cwd: context.home("some dir") }), "here");
      assert.equal(await context.succeed("cat marker", { cwd: context.home("link") }), "here");
    },
  },
  {
    name: "a directory that is not there is named in the refusal",
    group: "process",
    async run(context) {
      await context.write(context.home("file"), "");
      for (const cwd of [context.home("missing"), context.home("file")]) {
        const text = new RegExp(`^cwd '${cwd}' does not exist$`);
        await context.refuses(context.start("true", { cwd }), "invalid_argument", text);
      }
    },
  },
  {
    name: "a program that does not exist ends with 127 and says so on stderr",
    group: "process",
    async run(context) {
      for (const path of ["no-such-program", "/no/such/program", "./no-such-program"]) {
        const started = await context.startProgram(path);
        assert.ok(started.pid > 0);
        const { exit, stdout, stderr } = await context.finish(started);
        assert.deepEqual(exit, { code: 127 });
        assert.equal(stdout.byteLength, 0);
        assert.match(stderr.toString(), /no-such-program|\/no\/such\/program/);
      }
    },
  },
  {
    name: "a file that is no program ends with 126",
    group: "process",
    async run(context) {
      await context.write(context.home("data"), "no program");
      const { exit } = await context.finish(await context.startProgram("./data"));
      assert.deepEqual(exit, { code: 126 });
    },
  },
  {
    name: "a script that was uploaded and made executable runs",
    group: "process",
    async run(context) {
      await context.write(context.home("tool"), '#!/bin/sh\necho "ran $1"\n');
      await context.succeed("chmod +x tool");
      const { stdout } = await context.finish(await context.startProgram("./tool", ["once"]));
      assert.equal(stdout.toString(), "ran once\n");
    },
  },
  {
    name: "an unknown user cannot start anything",
    group: "process",
    async run(context) {
      await context.refuses(context.start("true", { user: "nobody-of-that-name" }), "unauthenticated");
    },
  },
  {
    name: "the pid is that of the program itself",
    group: "process",
    async run(context) {
      const started = await context.start("echo $$", { input: "none" });
      const { stdout } = await context.finish(started);
      assert.equal(stdout.toString(), `${started.pid}\n`);
    },
  },
  {
    name: "stdin takes what is written and ends when it is closed",
    group: "process",
    async run(context) {
      const blob = randomBytes(MEBIBYTE);
      const cat = await context.startProgram("cat");
      const finished = context.finish(cat);
      await cat.write(new Uint8Array());
      for (let start = 0; start < blob.byteLength; start += 100_000) {
        await cat.write(blob.subarray(start, start + 100_000));
      }
      await cat.closeInput();
      await cat.closeInput();
      const { exit, stdout } = await finished;
      assert.deepEqual(exit, { code: 0 });
      assert.ok(stdout.equals(blob), "the bytes differ");
      await context.refuses(cat.write(Buffer.from("late")), "failed_precondition");
    },
  },
  {
    name: "a slow reader of stdin slows the writer",
    group: "process",
    async run(context) {
      const reader = await context.start("sleep 300");
      const writing = reader.write(Buffer.alloc(4 * MEBIBYTE));
      const first = await Promise.race([writing.then(() => "written"), sleep(200, "waiting")]);
      assert.equal(first, "waiting");
      await reader.kill("SIGKILL", "group");
      await context.refuses(context.within(2_000, "the write settles", writing), "failed_precondition");
    },
  },
  {
    name: "without input stdin is empty from the start",
    group: "process",
    async run(context) {
      const cat = await context.start("cat; echo end", { input: "none" });
      await context.refuses(cat.write(Buffer.from("x")), "failed_precondition");
      await cat.closeInput();
      const { stdout } = await context.within(2_000, "it ends", context.finish(cat));
      assert.equal(stdout.toString(), "end\n");
    },
  },
  {
    name: "stdin, stdout and stderr can be opened by their names in /dev",
    group: "process",
    async run(context) {
      const started = await context.start("cat /dev/stdin > /dev/stdout; echo err > /dev/stderr");
      await started.write(Buffer.from("through\n"));
      await started.closeInput();
      const { stdout, stderr } = await context.finish(started);
      assert.equal(stdout.toString(), "through\n");
      assert.equal(stderr.toString(), "err\n");
    },
  },
  {
    name: "signals arrive: trapped ones are handled, others end the process and are named",
    group: "process",
    async run(context) {
      const trapping = await context.start(
        "trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.02; done",
      );
      const output = trapping.output[Symbol.asyncIterator]();
      await output.next();
      await trapping.kill("SIGTERM");
      assert.equal(Buffer.from((await output.next()).value?.data ?? []).toString(), "caught\n");
      assert.deepEqual(await trapping.exit, { code: 7 });
      for (const signal of ["SIGTERM", "SIGKILL", "SIGUSR1"] as const) {
        const sleeping = await context.startProgram("sleep", ["300"]);
        await sleeping.kill(signal);
        assert.equal((await sleeping.exit).signal, signal);
      }
    },
  },
  {
    name: "a process that kills itself ends by that signal, not by a code",
    group: "process",
    async run(context) {
      const { exit } = await context.shell("kill -9 $$");
      assert.equal(exit.signal, "SIGKILL");
      assert.equal(exit.code, undefined);
    },
  },
  {
    name: "a process that has ended cannot be killed",
    group: "process",
    async run(context) {
      const ended = await context.start("exit 0");
      await context.finish(ended);
      await context.refuses(ended.kill("SIGKILL"), "not_found");
      await context.refuses(ended.kill("SIGKILL", "group"), "not_found");
    },
  },
  {
    name: "a kill reaches the process alone, or its whole group when asked",
    group: "process",
    async run(context) {
      const alone = await startFamily(context);
      await alone.process.kill("SIGKILL");
      await alone.process.exit;
      assert.ok(!(await context.isAlive(alone.process.pid)), "the process is still there");
      assert.ok(await context.isAlive(alone.child), "the child died, too");
      const group = await startFamily(context);
      await group.process.kill("SIGKILL", "group");
      await group.process.exit;
      await context.until("the child is gone", async () => !(await context.isAlive(group.child)));
    },
  },
  {
    name: "killing ends the output, although a child still holds it, and loses nothing of it",
    group: "process",
    async run(context) {
      const started = await context.start("echo before; sleep 300 & echo $!; wait");
      const output = started.output[Symbol.asyncIterator]();
      await sleep(100);
      await started.kill("SIGKILL");
      const rest = Array.fromAsync({ [Symbol.asyncIterator]: () => output });
      const pieces = await context.within(2_000, "the output ends", rest);
      assert.match(Buffer.concat(pieces.map((piece) => piece.data)).toString(), /^before\n\d+\n$/);
    },
  },
  {
    name: "the exit is known while a child still holds the output, which goes on",
    group: "process",
    async run(context) {
      const started = await context.start("(sleep 0.7; echo late) & echo early; exit 43");
      const finished = context.finish(started);
      const exit = await context.within(500, "the exit is known", started.exit);
      assert.deepEqual(exit, { code: 43 });
      assert.equal((await finished).stdout.toString(), "early\nlate\n");
    },
  },
  {
    name: "a slow reader slows the process",
    group: "process",
    async run(context) {
      const script = "i=0; while :; do printf '%065536d' 0; i=$((i + 1)); echo $i > progress; done";
      const writer = await context.start(script);
      const output = writer.output[Symbol.asyncIterator]();
      const progress = async (): Promise<number> => {
        const written = await context.read(context.home("progress")).catch(() => Buffer.from("0"));
        return Number(written.toString());
      };
      await output.next();
      let before = -1;
      await context.until("the writer stands still", async () => {
        const last = before;
        before = await progress();
        await sleep(150);
        return before === last && before > 0;
      });
      assert.ok(before <= 64, `it wrote ${before} times 64 KiB that nobody took`);
      for (let taken = 0; taken < 4 * MEBIBYTE;) taken += (await output.next()).value?.data.byteLength ?? 0;
      await context.until("the writer goes on", async () => (await progress()) > before);
      await writer.kill("SIGKILL");
      await output.return?.();
    },
  },
  {
    name: "a reader that leaves does not hold the process up",
    group: "process",
    async run(context) {
      const writer = await context.start("head -c 10000000 /dev/zero; echo done > finished");
      for await (const _ of writer.output) break;
      assert.deepEqual(await context.within(5_000, "it ends", writer.exit), { code: 0 });
      assert.equal((await context.read(context.home("finished"))).toString(), "done\n");
    },
  },
  {
    name: "a process whose output is not read ends all the same",
    group: "process",
    async run(context) {
      const quiet = await context.start("echo unread; exit 5");
      assert.deepEqual(await context.within(2_000, "it ends", quiet.exit), { code: 5 });
    },
  },
  {
    name: "twenty processes at once keep their outputs and codes apart",
    group: "process",
    async run(context) {
      const numbers = Array.from({ length: 20 }, (_, index) => index);
      const all = await Promise.all(
        numbers.map((number) => context.shell('echo "$1"; exit "$1"', { args: [String(number)] })),
      );
      assert.deepEqual(
        all.map(({ exit, stdout }) => [exit.code, stdout.toString()]),
        numbers.map((number) => [number, `${number}\n`]),
      );
    },
  },
  {
    name: "a process that outlives its parent is reaped when it ends",
    group: "process",
    async run(context) {
      const script = "for _ in 1 2 3; do sh -c 'sleep 0.2 > /dev/null 2>&1 & echo $!'; done";
      const pids = (await context.succeed(script)).trim().split("\n");
      assert.equal(pids.length, 3);
      await context.until("they are gone from the process table", async () => {
        const { stdout } = await context.shell('for pid; do [ -e "/proc/$pid" ] && echo "$pid"; done', {
          args: pids,
        });
        return stdout.byteLength === 0;
      });
    },
  },
  {
    name: "a program starts with no signal blocked or ignored",
    group: "process",
    async run(context) {
      // Where there is no such file, FreeBSD's ps(1) has them.
      const script = `sed -n 's/^Sig\\(Blk\\|Ign\\)://p' /proc/self/status 2> /dev/null | grep . ||
        ps -o sigmask= -o sigignore= -p $$`;
      assert.match(await context.succeed(script), /^(\s*0+\s*){2}$/);
    },
  },
  {
    name: "a command gets the terminal it asks for, or a refusal that says why",
    group: "process",
    async run(context) {
      const [started] = await Promise.allSettled([
        context.start("stty size", { terminal: { columns: 71, rows: 13 } }),
      ]);
      if (started.status === "rejected") {
        await context.refuses(
          Promise.reject(started.reason),
          ["unimplemented", "failed_precondition"],
          /terminal/,
        );
        return;
      }
      const pieces = await Array.fromAsync(started.value.output);
      assert.ok(pieces.every(({ stream }) => stream === "terminal"));
      assert.equal(Buffer.concat(pieces.map((piece) => piece.data)).toString(), "13 71\r\n");
    },
  },
  {
    name: "a process without a terminal cannot be resized",
    group: "process",
    async run(context) {
      const plain = await context.start("sleep 300");
      await context.refuses(plain.resize({ columns: 80, rows: 24 }), "failed_precondition");
      await plain.kill("SIGKILL");
    },
  },
];

async function startFamily(context: ConformanceContext): Promise<{ process: Process; child: string }> {
  const started = await context.start("sleep 300 > /dev/null 2>&1 & echo $!; wait");
  const { value } = await started.output[Symbol.asyncIterator]().next();
  return {
    process: started,
    child: Buffer.from(value?.data ?? [])
      .toString()
      .trim(),
  };
}
