import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { text } from "node:stream/consumers";
import { it, type TestContext } from "node:test";

const LOGGER = new URL("logger.js", import.meta.url).href;
const BIG = 512 * 1024;

/**
 * A process whose stdout is read by `reader`, a program of the shell. It logs, and ends by `process.exit`.
 * @returns how it ended, what the reader printed, and its own stderr.
 */
async function run(context: TestContext, reader: string, body: string) {
  const program = `
    import { setTimeout as delay } from "node:timers/promises";
    const { createLogger } = await import(process.argv[1]);
    const log = createLogger("info");
    const big = "x".repeat(${BIG});
    ${body}
    process.exit(7);`;
  // The shell tells the end of the first program of the pipe.
  const line = `set -o pipefail; "$0" --input-type=module --eval "$1" "$2" | { ${reader}; }`;
  const child: ChildProcess = spawn("bash", ["-c", line, process.execPath, program, LOGGER], {
    stdio: ["ignore", "pipe", "pipe"],
    detached: true,
  });
  context.after(() => {
    if (child.exitCode === null) process.kill(-(child.pid ?? 0), "SIGKILL");
  });
  assert.ok(child.stdout && child.stderr);
  const [out, errors, [code]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, "exit") as Promise<[number]>,
  ]);
  return { out, errors, code };
}

it(
  "each line is there after the end of the process, a fatal one at once",
  { timeout: 30_000 },
  async (context) => {
    const { out, code } = await run(
      context,
      "wc -l",
      `for (let at = 0; at < 2000; at += 1) log.info({ at, big: big.slice(0, 1000) }, "line"); log.fatal("last");`,
    );
    assert.deepEqual([out.trim(), code], ["2001", 7]);
  },
);

it(
  "a reader that has gone holds up neither a line nor the end of the process",
  { timeout: 30_000 },
  async (context) => {
    const { errors, code } = await run(
      context,
      "true",
      `await delay(500); log.info({ big }, "one"); log.fatal("two"); await delay(200); log.fatal("three"); process.stderr.write("on");`,
    );
    assert.deepEqual([errors, code], ["on", 7]);
  },
);

it(
  "a reader that stalls holds up the end of the process no longer than a second, and what waits is bounded",
  { timeout: 30_000 },
  async (context) => {
    const body = `
    process.stdout.on("error", () => {});
    for (let at = 0; at < 100; at += 1) log.info({ at, big }, "line");
    const beganMs = performance.now();
    await delay(300);
    process.stderr.write(String(performance.now() - beganMs < 2000) + String(process.memoryUsage().rss < 300e6));
    process.on("exit", () => process.stderr.write(String(performance.now() - beganMs < 5000)));`;
    const { errors, code } = await run(context, "sleep 4", body);
    assert.deepEqual([errors, code], ["truetruetrue", 7]);
  },
);
