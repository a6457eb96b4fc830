import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { it } from "node:test";
import { findProcesses, killProcesses, ROOT_VARIABLE } from "./host-processes.js";

it("the processes of a sandbox are found by their environment and ended, and no others", async () => {
  const root = await mkdtemp(join(tmpdir(), "coppice-host-processes-"));
  const start = (value: string) =>
    spawn("sleep", ["600"], { env: { ...process.env, [ROOT_VARIABLE]: value }, stdio: "ignore" });
  const path = process.env["PATH"];
  const [own, other] = [start(root), start(`${root}-other`)];
  await Promise.all([once(own, "spawn"), once(other, "spawn")]);
  try {
    if (process.platform !== "linux" && existsSync("/proc/self/environ")) {
      // A test for another system: its ps(1) shows environments by -e, where that of Linux shows them by e.
      await writeFile(join(root, "ps"), '#!/bin/sh\nshift\nexec /bin/ps axwwe "$@"\n', { mode: 0o755 });
      process.env["PATH"] = `${root}${delimiter}${path}`;
    }
    const ended = once(own, "exit");
    assert.deepEqual(await findProcesses(root), [own.pid]);
    await killProcesses(root, 10_000);
    assert.deepEqual(await ended, [null, "SIGKILL"]);
    assert.equal(other.signalCode, null);
    assert.deepEqual(await findProcesses(root), []);
  } finally {
    for (const process of [own, other]) process.kill("SIGKILL");
    process.env["PATH"] = path;
    await rm(root, { recursive: true });
  }
});
