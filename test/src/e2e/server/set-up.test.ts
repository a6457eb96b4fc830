import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { cp, mkdir, mkdtemp, readFile, realpath, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const run = promisify(execFile);
const ROOT = fileURLToPath(new URL("../../../..", import.meta.url));

describe("set-up of a checkout", () => {
  let tree: string;

  before(async () => {
    tree = await realpath(await mkdtemp(join(tmpdir(), "coppice-set-up-")));
    await cp(join(ROOT, "scripts"), join(tree, "scripts"), { recursive: true });
  });
  after(() => rm(tree, { recursive: true, force: true }));

  const moduleOf = (name: string) => JSON.stringify(join(tree, "scripts/toolchain", name));

  it("is one at a time, and the next one goes on when the one before it was killed", async (t) => {
    if (process.platform !== "linux") return t.skip("flock(1) is Linux's");
    const script = `import { takeSetupLock } from ${moduleOf("setup-lock.mjs")};
      await takeSetupLock();
      console.log("has it");
      setInterval(() => {}, 1_000);`;
    const start = () => {
      const child = spawn(process.execPath, ["--input-type=module", "-e", script], {
        stdio: ["ignore", "pipe", "inherit"],
      });
      t.after(() => child.kill("SIGKILL"));
      return { child, lines: createInterface({ input: child.stdout })[Symbol.asyncIterator]() };
    };
    const first = start();
    assert.equal((await first.lines.next()).value, "has it");
    const second = start();
    assert.match((await second.lines.next()).value ?? "", /^Another set-up of this checkout is running/);
    const ended = once(first.child, "exit");
    first.child.kill("SIGKILL");
    await ended;
    assert.equal((await second.lines.next()).value, "has it");
  });

  it("shows what a failed step has printed, line by line, and nothing of one that succeeds", async () => {
    const script = `import { runQuietly } from ${moduleOf("step.mjs")};
      const run = (line) => runQuietly("the step", "sh", ["-c", line]);
      process.exitCode = (await run("echo one; echo two >&2")) + (await run("echo three; echo four >&2; exit 3"));`;
    const failed = run(process.execPath, ["--input-type=module", "-e", script]);
    await assert.rejects(
      failed,
      ({ code, stdout, stderr }: { code: number; stdout: string; stderr: string }) => {
        const [heading, ...lines] = stderr.trimEnd().split("\n");
        assert.deepEqual(
          { code, stdout, heading, lines: lines.toSorted() },
          { code: 3, stdout: "", heading: "coppice: the step printed:", lines: ["  four", "  three"] },
        );
        return true;
      },
    );
  });

  it("does not take the Python of the checkout that it is a copy of", async () => {
    // One that exists, as that of a checkout beside this one does.
    const interpreter = "/bin/sh";
    const record = join(tree, ".toolchain", "python.json");
    await mkdir(dirname(record), { recursive: true });
    await writeFile(record, JSON.stringify({ checkout: join(tree, "..", "other"), interpreter }));
    const script = `import { ensurePython } from ${moduleOf("python.mjs")}; console.log(await ensurePython());`;
    const { COPPICE_PYTHON: _, ...environment } = process.env;
    // What is missing cannot be fetched.
    const env = { ...environment, PIP_NO_INDEX: "1", PIP_FIND_LINKS: tree, PIP_CONFIG_FILE: "/dev/null" };
    const found = await run(process.execPath, ["--input-type=module", "-e", script], { env }).then(
      ({ stdout }) => stdout.trim().split("\n").at(-1),
      ({ stderr }: { stderr: string }) => stderr,
    );
    assert.notEqual(found, interpreter);
    if (found?.startsWith("/") === true) {
      assert.equal(JSON.parse(await readFile(record, "utf8")).checkout, tree);
    } else assert.match(found ?? "", /is missing, and none could be made/);
  });
});
