import assert from "node:assert/strict";
import { after, before, it } from "node:test";
import { SeededRandom } from "@coppice/core/testing";
import { type ShellServer, startShellServer } from "../testing/shell-server.js";

/** Rounds of the project's goal: COPPICE_ROUNDS=1000. */
const ROUNDS = Number(process.env["COPPICE_ROUNDS"] ?? 120);
const SEED = Number(process.env["COPPICE_SEED"] ?? 20_261_125);
const TIMEOUT_MS = 400;
const STATUSES = new Set([200, 400, 410, 500]);

const CHARACTERS = "'\"`$(){}[]<>|&;#!\\*?~ \n\t\r=%-ab0\u0007\u001b\u001e\u001f";
const TOKENS: readonly [string, ...string[]] = [
  "é",
  ...CHARACTERS.split(""),
  "$(",
  "${",
  "((",
  "[[",
  "<<EOF\n",
  "\nEOF\n",
  "<<'X'\n",
  "<<<",
  "2>&1",
  ">&11",
  ">&12",
  "&>/dev/null",
  "<(",
  ">(",
  "if ",
  "then ",
  "fi;",
  "while :;",
  "do ",
  "done;",
  "case x in ",
  "esac;",
  "function f {",
  "};",
  "eval ",
  "true;",
  "false;",
  "builtin ",
  "command ",
  "__coppice_end x 0;",
  "$__coppice_command",
  "read -r x;",
  "cat;",
  "echo ",
];

/** What ends shells, blocks them, or floods them. */
const WHOLE: readonly [string, ...string[]] = [
  "exit 3",
  "exec true",
  "exec no-such-program",
  "kill -9 $$",
  "kill -TERM $$",
  "kill -STOP $$",
  "kill -USR1 $$",
  "cat",
  "read x",
  "sleep 30",
  "sleep 30 &",
  "(trap '' TERM; sleep 30)",
  "trap '' TERM INT HUP; sleep 30",
  "cat <<EOF",
  "echo 'open",
  'echo "open',
  "echo `open",
  "f() { f; }; f",
  "head -c 300000 /dev/zero",
  "head -c 300000 /dev/urandom",
  "printf '\\036%s\\0' x",
  "printf '\\036' >&11",
  "exec 11>&- 12>&-",
  "exec 1>&- 2>&-",
  "exec 0</dev/zero",
  "set -e; false",
  "set -u; echo $no_such_variable",
  "(exit 300)",
  "return 4",
  "break 9",
  "logout",
  "kill -STOP $BASHPID & wait",
  "yes | head -n 20000",
  "ulimit -f 0; echo x > /tmp/never",
  "exec 2>&1; echo x",
];

let shell: ShellServer;
before(async () => {
  shell = await startShellServer({ shellTimeout: "2s", killGrace: "500ms" });
});
after(() => shell[Symbol.asyncDispose]());

it("no command changes the outcome of the next one", { timeout: 60_000 + ROUNDS * 3_000 }, async () => {
  const random = new SeededRandom(SEED);
  const textOf = (): string => {
    const kind = random.below(100);
    if (kind < 30) return random.of(WHOLE);
    if (kind < 32) return `echo ${"x".repeat(2 ** 20)}`;
    if (kind < 35) return `echo a\0${random.of(TOKENS)}`;
    return Array.from({ length: 1 + random.below(12) }, () => random.of(TOKENS)).join("");
  };
  for (let round = 0; round < ROUNDS; round += 1) {
    const command = textOf();
    const told = `seed ${SEED}, round ${round}: ${JSON.stringify(command.slice(0, 200))}`;
    const hostile = await shell.ask("POST", "/api/execute", {
      command,
      sessionId: "one",
      timeoutMs: TIMEOUT_MS,
    });
    await hostile.arrayBuffer();
    assert.ok(STATUSES.has(hostile.status), `${told}: ${hostile.status}`);
    // A command that has ended its shell may be told of it by the next call, once.
    const next = {
      command: "builtin printf %s '<next>'; builtin false",
      sessionId: "one",
      timeoutMs: 10_000,
    };
    let answer = await shell.ask("POST", "/api/execute", next);
    if (answer.status === 410) answer = await shell.ask("POST", "/api/execute", next);
    const { exitCode, stdout } = (await answer.json()) as { exitCode?: number; stdout?: string };
    assert.deepEqual([answer.status, exitCode, stdout], [200, 1, "<next>"], told);
  }
});
