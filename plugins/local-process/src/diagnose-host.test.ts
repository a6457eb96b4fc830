import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, it } from "node:test";
import { agentBinary } from "@coppice/agent";
import { diagnoseHost } from "./diagnose-host.js";
import { HostAgent } from "./host-agent.js";

const { signal } = new AbortController();
const withKernels = { signal, plugins: new Set(["jupyter"]) };
const agent = new HostAgent({ onDeath: async () => undefined });
let directory: string;

before(async () => {
  directory = await mkdtemp(join(tmpdir(), "coppice-diagnose-"));
});

after(async () => {
  await agent.close();
  await rm(directory, { recursive: true });
});

/** Creates an interpreter that runs a script. */
async function interpreter(script: string): Promise<string> {
  const path = join(directory, "python");
  await writeFile(path, `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  return path;
}

it("the agent program is named, and its replacement is no failure", async () => {
  const none = { signal, plugins: new Set<string>() };
  const [built, ...rest] = await diagnoseHost({ agent, python: "python3" }, none);
  assert.deepEqual(rest, [], "only the code interpreter needs Python");
  if (agentBinary() !== undefined) {
    assert.deepEqual(built, { severity: "ok", message: `programs are started by ${agentBinary()}` });
  }
  const withoutProgram = new HostAgent({ binary: "node", onDeath: async () => undefined });
  const [fallback] = await diagnoseHost({ agent: withoutProgram, python: "python3" }, none);
  assert.equal(fallback?.severity, "warn");
  assert.match(fallback.message, /a Node process starts programs in its place, slower and without terminals/);
  assert.ok(fallback.fix);
});

it("an interpreter with ipykernel is reported with its versions", async () => {
  const python = await interpreter("echo 'Python 3.13.1 with ipykernel 7.0.0'");
  const [, finding] = await diagnoseHost({ agent, python }, withKernels);
  assert.deepEqual(finding, {
    severity: "ok",
    message: `${python} is Python 3.13.1 with ipykernel 7.0.0`,
  });
});

it("an interpreter without ipykernel, or none, is a failure with the reason and a fix", async () => {
  const lacking = await interpreter(
    "echo Traceback >&2; echo \"ModuleNotFoundError: No module named 'ipykernel'\" >&2; exit 1",
  );
  const [, finding] = await diagnoseHost({ agent, python: lacking }, withKernels);
  assert.deepEqual(finding, {
    severity: "fail",
    message: `the code interpreter cannot use ${lacking}: ModuleNotFoundError: No module named 'ipykernel'`,
    fix: "install ipykernel for it (Debian: apt-get install python3-ipykernel; FreeBSD: pkg install py311-ipykernel), or name another interpreter as local-process.python",
  });
  const [, missing] = await diagnoseHost({ agent, python: "no-such-python" }, withKernels);
  assert.equal(missing?.severity, "fail");
  assert.match(missing.message, /cannot use no-such-python: .*not found/);
});

it("an interpreter that hangs ends when its check is aborted", async () => {
  const given = new AbortController();
  const python = await interpreter("sleep 300");
  const asked = diagnoseHost({ agent, python }, { ...withKernels, signal: given.signal });
  setTimeout(() => given.abort(), 100);
  const [, finding] = await asked;
  assert.equal(finding?.severity, "fail");
});
