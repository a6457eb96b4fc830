import assert from "node:assert/strict";
import { chmod, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout } from "node:timers/promises";
import { agentBinary } from "@coppice/agent";
import { Host, HostCommandError } from "./host.js";
import { jailFreebsdConfig } from "../jail-freebsd-config.js";
import { reasonWithoutRecordingHost } from "../testing/recording-host.js";

describe("programs of the host", { skip: reasonWithoutRecordingHost() ?? false }, () => {
  let directory: string;
  let host: Host;
  let logged: object[] = [];

  /** Replaces zfs(8) with a script. */
  const script = async (text: string) => {
    const path = join(directory, "zfs");
    await writeFile(path, `#!/bin/sh\n${text}\n`);
    await chmod(path, 0o755);
  };

  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "ch-"));
    const { hostOutputLimit, programs } = jailFreebsdConfig.parse({
      // Other programs have these names in PATH: Java has a jexec.
      programs: { zfs: join(directory, "zfs"), jexec: join(directory, "sh") },
    });
    process.env["COPPICE_TEST_SECRET"] = "hidden";
    host = new Host({
      programs,
      agent: agentBinary() ?? "",
      socket: join(directory, "host.sock"),
      timeoutMs: 30_000,
      outputLimitBytes: hostOutputLimit,
      log: { debug: (entry: unknown) => void logged.push(entry as object), warn: () => undefined },
    });
  });
  after(async () => {
    delete process.env["COPPICE_TEST_SECRET"];
    await host.close({ isEmpty: true });
    await rm(directory, { recursive: true });
  });

  it("are found by the full paths of the settings, not by PATH", async () => {
    await assert.rejects(host.run("jexec", ["-c", "true"]), /No such file or directory/);
    for (const path of ["jexec", "./jexec", "usr/sbin/jexec", "/usr/sbin/je xec", "/usr/sbin/jexec;"]) {
      assert.equal(jailFreebsdConfig.safeParse({ programs: { jexec: path } }).success, false, path);
    }
  });

  it("are logged with arguments, exit and duration, but without stdin", async () => {
    await script("cat > /dev/null; exit 3");
    logged = [];
    const { code } = await host.try("zfs", ["list", "$(id)"], { input: "secret" });
    assert.equal(code, 3);
    const [entry, ...others] = logged as { durationMs: number }[];
    assert.ok(entry && entry.durationMs > 0);
    assert.deepEqual(
      { ...entry, durationMs: 0 },
      { program: "zfs", args: ["list", "$(id)"], code, durationMs: 0 },
    );
    assert.deepEqual(others, []);
    assert.doesNotMatch(JSON.stringify(logged), /secret/);
  });

  it("do not get the server's environment", async () => {
    await script("env");
    const names = (await host.run("zfs", [])).split("\n").map((line) => line.split("=")[0]);
    assert.ok(names.includes("LC_ALL") && names.includes("PATH"));
    assert.ok(!names.includes("COPPICE_TEST_SECRET"));
  });

  it("fail with their stderr, and are killed with their children when they take too long or write too much", async () => {
    await script("echo no such thing >&2; exit 1");
    await assert.rejects(host.run("zfs", ["destroy"]), (error) => {
      assert.ok(error instanceof HostCommandError);
      assert.equal(error.message, "zfs destroy ended with 1: no such thing");
      return true;
    });
    const pid = join(directory, "pid");
    await script(`sleep 600 & echo $! > ${pid}; wait`);
    await assert.rejects(host.run("zfs", [], { timeoutMs: 2_000 }), { code: "deadline_exceeded" });
    const words = `/proc/${(await readFile(pid, "utf8")).trim()}/cmdline`;
    // The kernel ends what was killed some time after.
    const isRunning = async () => (await readFile(words, "utf8").catch(() => "")) !== "";
    for (let look = 0; look < 100 && (await isRunning()); look++) await setTimeout(50);
    assert.ok(!(await isRunning()));
    // The signal ends the script, and its child keeps the pipe open, like a process that waits in the kernel.
    await script(`setsid sleep 600 & echo $! > ${pid}; wait`);
    await assert.rejects(host.run("zfs", [], { timeoutMs: 2_000 }), { code: "deadline_exceeded" });
    process.kill(Number(await readFile(pid, "utf8")), "SIGKILL");
    await script("head -c 9000000 /dev/zero");
    await assert.rejects(host.run("zfs", []), { code: "resource_exhausted" });
  });

  it("hand on their output by lines, of any number, and keep what comes after the last", async () => {
    await script("yes 'a line with €' | head -n 1000000; printf 'cut o'");
    let count = 0;
    const lines = new Set<string>();
    const onLine = (line: string) => {
      count++;
      lines.add(line);
    };
    assert.equal(await host.run("zfs", [], { onLine }), "cut o");
    assert.equal(count, 1_000_000);
    assert.deepEqual([...lines], ["a line with €"]);
    await script("echo one; head -c 9000000 /dev/zero; echo; echo two");
    lines.clear();
    await assert.rejects(host.run("zfs", [], { onLine }), { code: "resource_exhausted" });
    assert.deepEqual([...lines], ["one"]);
    await script("printf 'one\\n\\ntwo\\n'");
    lines.clear();
    assert.equal(await host.run("zfs", [], { onLine }), "");
    assert.deepEqual([...lines], ["one", "", "two"]);
  });
});
