import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { type AsFreebsd, asFreebsd } from "../../harness/freebsd/as-freebsd.js";

const ROOT = fileURLToPath(new URL("../../../..", import.meta.url));
const TIMEOUT_MS = 540_000;
/** Tests of `files` for what Node finds out where there is no agent. */
const FILES = ["http/files-routes", "watch/host-watch", "watch/watchers"].map(
  (name) => `plugins/files/dist/${name}.test.js`,
);

/** What a suite of a backend asks of this system: files and ends of sandboxes. The agent answers for the rest, if it is there. */
const THAT_ASK = [
  "--test-skip-pattern=without the agent.s program keeps the promises of a backend (?!files|provision)",
  "--test-skip-pattern=local-process keeps the promises of a backend (network|process|terminal)",
];

/** Tests of the code that asks which system it is on, under another answer. */
describe("a server on FreeBSD, as far as another system shows it", { timeout: TIMEOUT_MS }, () => {
  let directory: string;
  let freebsd: AsFreebsd;

  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-platform-"));
    freebsd = await asFreebsd(directory);
  });
  after(() => rm(directory, { recursive: true }));

  /** @returns how many tests passed. @throws AssertionError with the output of those that did not. */
  async function passing(...words: readonly string[]): Promise<number> {
    const { NODE_TEST_CONTEXT: _, ...environment } = process.env;
    const { stdout } = await promisify(execFile)(
      process.execPath,
      // What a failed test leaves open would hold its output back until the time is up.
      ["--test", "--test-force-exit", "--test-reporter=tap", ...words],
      { cwd: ROOT, env: { ...environment, ...freebsd.environment }, maxBuffer: 2 ** 26 },
    ).catch((error: Error & { readonly stdout: string }) => assert.fail(error.stdout.slice(-100_000)));
    return Number(/^# pass (\d+)$/m.exec(stdout)?.[1]);
  }

  it("runs sandboxes of local-process, with the agent's program and without", async () => {
    const folder = "plugins/local-process/dist";
    const names = await readdir(join(ROOT, folder), { recursive: true });
    const tests = names.filter((name) => name.endsWith(".test.js")).map((name) => join(folder, name));
    assert.ok(tests.length >= 8, tests.join(" "));
    const passed = await passing(...THAT_ASK, ...tests);
    assert.ok(passed >= 120, `${passed} passed`);
  });

  it("serves files and watches", async () => {
    const passed = await passing(...FILES);
    assert.ok(passed >= 30, `${passed} passed`);
  });

  it("asks registries for images of FreeBSD", async () => {
    const script = `import { copyByGate } from ${JSON.stringify(join(ROOT, "plugins/templates/dist/images/skopeo-copy.js"))};
      const run = async (_, { args }) => (console.log(args.join(" ")), { code: 0, output: "" });
      const copy = { programs: { run }, skopeo: "skopeo", directory: process.cwd(), from: ":latest" };
      await copyByGate({ address: "registry", username: "", password: "" }, copy);`;
    const as = ["--import", freebsd.preload, "--input-type=module", "-e", script];
    const { stdout } = await promisify(execFile)(process.execPath, as, { cwd: directory });
    assert.match(stdout, / --override-os freebsd --override-arch arm64 /);
  });

  it("starts programs by a Node process where there is no compiler", async () => {
    // Descriptors are counted by FreeBSD's procstat(1).
    const names = ["--test-name-pattern=of the Node process", "--test-skip-pattern=leave no descriptor"];
    const passed = await passing(...names, "agent/dist/processes.test.js");
    assert.ok(passed >= 15, `${passed} passed`);
  });
});
