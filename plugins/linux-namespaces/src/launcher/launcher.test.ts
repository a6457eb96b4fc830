import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readFile, readdir, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { agentBinary } from "@coppice/agent";
import { Launcher } from "./launcher.js";
import { launcherBinary } from "./host-programs.js";
import { reasonToSkip } from "../testing/test-backend.js";
import { isAlive } from "./sandbox-record.js";
import { findUserNamespace } from "./user-namespace.js";

describe("the launcher", { skip: reasonToSkip() ?? false, concurrency: 1 }, () => {
  let directory: string;
  let launcher: Launcher;

  beforeEach(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-launcher-"));
    launcher = new Launcher(await launcherBinary(directory), await findUserNamespace());
  });
  afterEach(async () => {
    await launcher.close();
    await rm(directory, { recursive: true, force: true });
  });

  it("runs programs of the host with an input, and reports how they end", async () => {
    assert.deepEqual(await launcher.run(["cat"], "through"), { code: 0, output: "through" });
    assert.deepEqual(await launcher.run(["sh", "-c", "echo said >&2; exit 43"]), {
      code: 43,
      output: "said\n",
    });
    assert.equal((await launcher.run(["no-such-program-anywhere"])).code, 127);
    assert.deepEqual(await launcher.run(["sh", "-c", "kill -9 $$"]), { code: -9, output: "" });
    await assert.rejects(launcher.run(["cat"], "x".repeat(65_537)), /Argument list too long/);
    await assert.rejects(launcher.run(["echo", "one\0two"]), { code: "invalid_argument" });
    assert.match(
      (await launcher.run(["env"])).output,
      /^PATH=.*\nLC_ALL=C\n$/,
      "nothing of the server's environment",
    );
    const many = await Promise.all(Array.from({ length: 100 }, () => launcher.run(["true"])));
    assert.ok(many.every(({ code }) => code === 0));
  });

  it("removes trees of any depth, with names of any kind, and no targets of links", async () => {
    const tree = join(directory, "tree");
    await mkdir(tree);
    await writeFile(join(directory, "kept"), "kept");
    const script = `cd "$0" && ln -s ../kept link && ln -s .. up && mkfifo pipe && mkdir moved-0 && touch moved-0/moved-0`;
    // Longer than PATH_MAX.
    const dig = `for (let depth = 0; depth < 3000; depth++) {
      for (const name of ["a-name-of-some-length", "b"]) fs.mkdirSync(name);
      process.chdir("a-name-of-some-length");
    }`;
    for (const argv of [
      ["sh", "-c", script, tree],
      ["sh", "-c", 'cd "$0" && exec "$@"', tree, process.execPath, "-e", dig],
    ]) {
      const { code, output } = await launcher.run(argv);
      assert.equal(code, 0, output);
    }
    await launcher.remove(tree, join(directory, "missing"));
    assert.equal(existsSync(tree), false);
    assert.equal(await readFile(join(directory, "kept"), "utf8"), "kept");
  });

  it("names the instruction that failed, and leaves no process", async () => {
    const words = [
      "directory",
      join(directory, "made"),
      "755",
      "bind",
      join(directory, "missing"),
      "/usr",
      "r",
    ];
    await assert.rejects(launcher.launch(directory, "", words), /bind .*missing: No such file or directory/);
    const [pid] = (await readFile(join(directory, "init"), "utf8")).split(" ");
    assert.equal(existsSync(`/proc/${pid}`), false);
    await assert.rejects(launcher.launch(directory, "", ["dance"]), /.+/);
  });

  it("refuses an overlay of more layers than the kernel takes options for", async () => {
    for (const path of ["target", "layer", "layer/upper", "layer/work"]) await mkdir(join(directory, path));
    const lowers = Array.from({ length: 126 }, () => "/usr").join(":");
    const words = ["overlay", join(directory, "target"), lowers, join(directory, "layer"), ""];
    await assert.rejects(launcher.launch(directory, "", words), /overlay .*target: Argument list too long/);
  });

  it("mounts are invisible to other processes", async () => {
    const before = await readFile("/proc/self/mountinfo", "utf8");
    const place = join(directory, "place");
    await mkdir(place);
    const program = agentBinary() ?? assert.fail("there is no agent");
    const init = await launcher.launch(directory, "", ["tmpfs", place, "", "", "program", program]);
    assert.equal(await readFile("/proc/self/mountinfo", "utf8"), before);
    await launcher.end(init);
    assert.equal(existsSync(`/proc/${init.pid}`), false);
    await launcher.end(init);
  });

  it("does not end a process that only has the same pid", async () => {
    await launcher.end({ pid: process.pid, start: "1" });
  });

  it("a killed one is replaced at the next request, and keeps its lock", async () => {
    await launcher.lock(directory);
    const { output } = await launcher.run(["sh", "-c", "echo $PPID"]);
    const waiting = launcher.run(["sleep", "5"]);
    process.kill(Number(output), "SIGKILL");
    const outcome = waiting.then(() => "done", String);
    assert.match(await Promise.race([outcome, sleep(3_000, "it still waits")]), /the launcher has ended/);
    assert.equal((await launcher.run(["true"])).code, 0);
    const other = new Launcher(await launcherBinary(directory));
    await assert.rejects(other.lock(directory), /another server uses it/);
    await other.close();
  });

  it("keeps a bounded log of a program that outlives it", async () => {
    const program = await launcher.start(directory, ["/bin/sh", "-c", "head -c 200000 /dev/zero"]);
    while (await isAlive(program)) await sleep(20);
    assert.equal((await stat(join(directory, "log"))).size, 65_536);
  });

  it("is compiled once", async () => {
    const binary = await launcherBinary(directory);
    assert.equal(await launcherBinary(directory), binary);
    const names = await readdir(join(binary, ".."));
    assert.deepEqual(
      names.filter((name) => /\.[0-9a-f]{8}$/.test(name)),
      [],
    );
  });
});
