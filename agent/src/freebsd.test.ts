import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { startHostAgent } from "./start-host-agent.js";
import { withoutBinary } from "./testing/agent-kinds.js";
import { run } from "./testing/run.js";

const execute = promisify(execFile);

const BUILD = fileURLToPath(new URL("../../scripts/build-agent-for.mjs", import.meta.url));
const COMPILED = fileURLToPath(new URL(".", import.meta.url));
/** With the ELF machine number. */
const TARGETS = ["14.0", "15.0"].flatMap((release) => [
  { target: `x86_64-freebsd.${release}`, machine: 62 },
  { target: `aarch64-freebsd.${release}`, machine: 183 },
]);
/** Program interpreter of FreeBSD alone. */
const LINKER = "/libexec/ld-elf.so.1\0";
const withoutZig = process.env["COPPICE_ZIG"] === undefined && "there is no zig (PyPI: ziglang)";
const withoutLoginUid =
  (!existsSync("/proc/self/loginuid") && "this kernel has no login uid") ||
  (process.getuid?.() !== 0 && "needs root, which may become another user");
const withoutStandIns = process.platform !== "linux" && "the stand-ins for FreeBSD need Linux";

const LEFT_OUT =
  process.env["COPPICE_TEST_VARIANTS"] === "main" && "nothing that it is about has changed since it passed";

describe("the agent for FreeBSD", { skip: LEFT_OUT }, () => {
  let folder: string;

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), "coppice-freebsd-"));
  });

  after(() => rm(folder, { recursive: true, force: true }));

  const build = async (target: string): Promise<string> => {
    const binary = join(folder, target);
    // A warning is an error in CI alone.
    await execute(process.execPath, [BUILD, target, binary], { env: { ...process.env, CI: "true" } }).catch(
      (error: Error & { readonly stderr: string }) => assert.fail(error.stderr),
    );
    return binary;
  };

  for (const { target, machine } of TARGETS) {
    it(`compiles without a warning, and links, for ${target}`, { skip: withoutZig }, async () => {
      const program = await readFile(await build(target));
      assert.equal(program.toString("latin1", 0, 4), "\x7fELF");
      assert.equal(program.readUInt16LE(18), machine);
      assert.ok(program.includes(LINKER), "it is for another system");
      // A native build is static, and no other library has to be there as a static one.
      assert.deepEqual(
        new Set(program.toString("latin1").match(/(?<=\0)lib\w+\.so\.\d+(?=\0)/g)),
        new Set(["libc.so.7"]),
      );
    });
  }

  it(
    "gives the session of a command the name of its user",
    { skip: withoutStandIns || withoutBinary || withoutLoginUid },
    async () => {
      const agent = await startHostAgent({ binary: await build("stand-ins") });
      try {
        const { stdout } = await run(agent, "/bin/cat", ["/proc/self/loginuid"], { user: "nobody" });
        assert.equal(stdout.toString(), "65534");
      } finally {
        await agent.close();
      }
    },
  );

  it(
    "handles files, programs and watches, over stand-ins for FreeBSD's interfaces",
    { skip: withoutStandIns || withoutBinary },
    async () => {
      const { NODE_TEST_CONTEXT: _, ...environment } = process.env;
      const env = { ...environment, COPPICE_AGENT: await build("stand-ins") };
      const files = ["files", "listening", "processes", "terminal", "watch"].map((name) =>
        join(COMPILED, `${name}.test.js`),
      );
      const { stdout } = await execute(
        process.execPath,
        ["--test", "--test-reporter=tap", "--test-skip-pattern=the Node process", ...files],
        {
          env,
        },
      ).catch((error: Error & { readonly stdout: string }) => assert.fail(error.stdout));
      const [, passed = ""] = /^# pass (\d+)$/m.exec(stdout) ?? [];
      assert.ok(Number(passed) > 50, stdout);
    },
  );
});
