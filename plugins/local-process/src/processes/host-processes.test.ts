import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { findProcesses, killProcesses, ROOT_VARIABLE } from "./host-processes.js";

describe("the processes of a sandbox", () => {
  let root: string;
  const started: ChildProcess[] = [];

  const start = async (value: string | undefined, cwd?: string) => {
    const env = { PATH: process.env["PATH"], ...(value !== undefined && { [ROOT_VARIABLE]: value }) };
    const child = spawn("sleep", ["600"], { env, cwd, stdio: "ignore" });
    started.push(child);
    await once(child, "spawn");
    return child;
  };

  before(async () => {
    root = await mkdtemp(join(tmpdir(), "coppice-host-processes-"));
  });
  after(async () => {
    for (const child of started) child.kill("SIGKILL");
    await rm(root, { recursive: true });
  });

  it("are found by their environment and ended, and no others", async () => {
    const [own, other] = await Promise.all([start(root), start(`${root}-other`)]);
    const ended = once(own, "exit");
    assert.deepEqual(await findProcesses(root), [own.pid]);
    await killProcesses(root);
    assert.deepEqual(await ended, [null, "SIGKILL"]);
    assert.equal(other.signalCode, null);
    assert.deepEqual(await findProcesses(root), []);
  });

  const skip = process.platform === "darwin" && "there is no program for it";
  it("are found by their working directory where they cleared their environment", { skip }, async () => {
    const own = await start(undefined, root);
    const ended = once(own, "exit");
    await start(undefined, tmpdir());
    assert.deepEqual(await findProcesses(root), [own.pid]);
    await killProcesses(root);
    assert.deepEqual(await ended, [null, "SIGKILL"]);
  });
});
