import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { runConfined } from "./confined-program.js";
import { type HostRun, Launcher } from "./launcher.js";
import { launcherBinary } from "./host-programs.js";
import { reasonToSkip } from "../testing/test-backend.js";
import { type UserNamespace, findUserNamespace } from "./user-namespace.js";

const FIRST_ID = 1_500_000_000;

describe("a confined program", { skip: reasonToSkip() ?? false, concurrency: 1 }, () => {
  let directory: string;
  let launcher: Launcher;
  let users: UserNamespace | undefined;
  let runs = 0;

  beforeEach(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-confined-"));
    for (const name of ["in", "out"]) await mkdir(join(directory, name));
    await writeFile(join(directory, "in", "secret"), "secret", { mode: 0o600 });
    users = await findUserNamespace();
    launcher = new Launcher(await launcherBinary(directory), users);
  });
  afterEach(async () => {
    await launcher.close();
    await rm(directory, { recursive: true, force: true });
  });

  async function run(
    script: string,
    {
      firstId = FIRST_ID,
      limits = {},
      signal = new AbortController().signal,
    }: {
      readonly firstId?: number | undefined;
      readonly limits?: Readonly<Record<string, number>>;
      readonly signal?: AbortSignal;
    } = {},
  ): Promise<HostRun> {
    const confinement = { launcher, users, firstId, place: join(directory, `place${runs++}`) };
    const program = {
      path: "/bin/sh",
      args: ["-c", script],
      directories: [
        { target: "/in", source: join(directory, "in"), isWritable: false },
        { target: "/out", source: join(directory, "out"), isWritable: true },
      ],
      // CHOWN and DAC_OVERRIDE.
      capabilities: [0, 1],
      resourceLimits: limits,
    };
    return runConfined(confinement, program, signal);
  }

  it("sees the system's directories and its own, and no network, processes or secrets of the host", async () => {
    const { code, output } = await run(
      "echo /*; cat /in/secret; echo; echo /proc/[0-9]*; cat /proc/net/dev | tail -n +3 | cut -d: -f1; echo $(id -u) $PATH; exit 43",
    );
    assert.equal(code, 43);
    const [root = "", ...rest] = output.split("\n");
    const system = [
      "/bin",
      "/dev",
      "/in",
      "/lib",
      "/lib32",
      "/lib64",
      "/libx32",
      "/out",
      "/proc",
      "/sbin",
      "/usr",
    ];
    assert.deepEqual(
      root.split(" ").filter((name) => !system.includes(name)),
      [],
    );
    assert.deepEqual(rest.slice(0, 4), ["secret", "/proc/1", "    lo", `0 ${rest[3]?.slice(2)}`]);
  });

  it("changes files of its own directories alone, and they get the owners that it names", async () => {
    const { output } = await run(
      "umask; echo x > /out/file; chown 7:8 /out/file; ls -n /out/file | cut -d ' ' -f 3,4; " +
        "for path in /in/new /usr/new /proc/sys/kernel/hostname; do (echo x > $path) 2> /dev/null && echo wrote $path; done; " +
        "(mknod /out/device c 1 3 || ln /in/secret /out/link) 2> /dev/null && echo made; chmod 777 /in 2> /dev/null && echo changed; true",
    );
    assert.equal(output, "0022\n7 8\n");
    const { output: seen } = await launcher.run(["stat", "-c", "%u:%g", join(directory, "out", "file")]);
    assert.equal(seen, "7:8\n");
  });

  it("does so where files cannot be id-mapped, too", async () => {
    const { output } = await run(
      "echo x > /out/file; chown 7:8 /out/file; cat /in/secret; touch /usr/x || true",
      { firstId: undefined },
    );
    assert.match(output, /^secrettouch: .*Read-only/);
    const { output: seen } = await launcher.run(["stat", "-c", "%u:%g", join(directory, "out", "file")]);
    assert.equal(seen, "7:8\n");
  });

  it("has resource limits, and fails by name when it cannot begin", async () => {
    const limits = { "file-size": 1_024, "cpu-seconds": 1 };
    // The kernel spares the first process of a namespace.
    const { output } = await run("sh -c 'yes > /out/large'; ls -n /out/large | cut -d ' ' -f 5", { limits });
    assert.match(output, /1024\n$/);
    const looping = await run("while :; do :; done", { limits });
    assert.notEqual(looping.code, 0);
    await assert.rejects(run("true", { limits: { nonsense: 1 } }), /resource-limit nonsense/);
  });

  it("ends with the signal, and with the launcher, however that ends", async () => {
    const abort = new AbortController();
    const looping = "echo > /out/begun; while :; do echo x; sleep 0.01; done";
    const running = run(looping, { signal: abort.signal });
    const begun = join(directory, "out", "begun");
    while (!existsSync(begun)) await sleep(5);
    abort.abort(new Error("enough"));
    await assert.rejects(running, /enough/);
    await assert.rejects(run("true", { signal: abort.signal }), /enough/);
    await rm(begun);
    const other = run(looping);
    const lost = assert.rejects(other, /launcher has ended/);
    while (!existsSync(begun)) await sleep(5);
    const { output } = await launcher.run(["sh", "-c", "echo $PPID"]);
    process.kill(Number(output), "SIGKILL");
    await lost;
    while ((await commandsIn(looping)).length > 0) await sleep(5);
  });
});

/** Processes of this host with an argument. */
async function commandsIn(argument: string): Promise<readonly string[]> {
  const found: string[] = [];
  for (const pid of await readdir("/proc")) {
    const text = /^\d+$/.test(pid) ? await readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "") : "";
    if (text.includes(argument)) found.push(pid);
  }
  return found;
}
