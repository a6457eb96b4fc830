import { spawn } from "node:child_process";
import { once } from "node:events";
import { chown, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import type { TestResult } from "./results-reporter.js";

const REPORTER = new URL("results-reporter.js", import.meta.url).href;

/** Directory of the compiled tests of this package. */
export const COMPILED = fileURLToPath(new URL("..", import.meta.url));

/** Environment on this host in which tests find other conditions. */
export interface Place {
  /** A program and its arguments, which runs the command that follows them there. */
  readonly enter: readonly [string, ...string[]];
  /** User id of the tests. */
  readonly uid: number;
  /** Additions to their environment. */
  readonly env?: Readonly<Record<string, string>>;
}

/** Runs compiled test files in another place; each of their tests becomes a subtest of the context. */
export async function testApart(context: TestContext, place: Place, files: readonly string[]): Promise<void> {
  const { NODE_TEST_CONTEXT: _, ...environment } = process.env;
  const home = await mkdtemp(join(tmpdir(), "coppice-home-"));
  await chown(home, place.uid, place.uid);
  const [program, ...words] = place.enter;
  const runner = [process.execPath, "--disable-warning=ExperimentalWarning", "--test"];
  const paths = files.map((file) => join(COMPILED, file));
  const child = spawn(program, [...words, ...runner, `--test-reporter=${REPORTER}`, ...paths], {
    cwd: "/",
    env: { ...environment, HOME: home, ...place.env },
    stdio: ["ignore", "pipe", "inherit"],
  });
  const ended = once(child, "exit");
  context.after(() => rm(home, { recursive: true }));
  for await (const line of createInterface({ input: child.stdout })) {
    const { name, failure, skipped } = JSON.parse(line) as TestResult;
    await context.test(name, { skip: skipped ?? false }, () => {
      if (failure !== undefined) throw new Error(failure);
    });
  }
  const [code] = (await ended) as [number | null];
  if (code !== 0) throw new Error(`the tests of ${files.join(", ")} ended with ${code}`);
}
