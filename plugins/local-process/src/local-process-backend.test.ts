import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, readFile, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { afterEach, beforeEach, test } from "node:test";
import type { Sandbox } from "@coppice/core/backend";
import { findProcesses } from "./host-processes.js";
import { LocalProcessBackend } from "./local-process-backend.js";

const SETTINGS = { writeInPlaceLimit: 262_144, diskScanEntries: 1_000, killTimeoutMs: 5_000 };
const PATH = process.env["PATH"] ?? "/usr/bin:/bin";

let directory: string;
let backend: LocalProcessBackend;

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "coppice-recover-"));
  backend = new LocalProcessBackend({ directory, ...SETTINGS });
  await backend.check();
});

afterEach(async () => {
  await backend.close();
  await rm(directory, { recursive: true });
});

test("a server that was killed leaves nothing to the next one, and a live one loses nothing to it", async () => {
  const other = await startServer();
  try {
    assert.ok((await findProcesses(other.root)).length >= 2, "the sandbox of the other server runs");
    assert.deepEqual(await backend.recover(), []);
    assert.ok((await findProcesses(other.root)).length >= 2, "it lost its processes to a live server");
    assert.ok((await sandboxDirectories()).length === 1, "it lost its files to a live server");
  } finally {
    other.process.kill("SIGKILL");
    await once(other.process, "exit");
  }
  assert.ok(
    (await findProcesses(other.root)).length >= 2,
    "processes outlive their server until it is recovered",
  );
  assert.deepEqual(await backend.recover(), []);
  assert.deepEqual(await findProcesses(other.root), []);
  assert.deepEqual(await sandboxDirectories(), []);
  assert.equal((await readdir(directory)).length, 1, "more than the pipes of this backend is left");
});

test("directories that only look like those of a server are left alone", async () => {
  const names = ["coppice-x", "coppice-x-0000.1.00000000-abcdef", "unrelated"];
  for (const name of names) await mkdir(join(directory, name));
  await backend.recover();
  const left = await readdir(directory);
  // The second is as a server on another host would name it.
  for (const name of names) assert.ok(left.includes(name), `${name} is gone`);
});

test("a sandbox cannot name files of another one by their place on the host", async () => {
  const [one, two] = await Promise.all([provision("one"), provision("two")]);
  await two.files.write("/home/user/secret", source("secret"));
  const path = `${await two.files.hostPath?.("/home/user")}/secret`;
  await two.files.stat(path);
  await assert.rejects(one.files.stat(path), { code: "not_found" });
  await Promise.all([one.destroy(), two.destroy()]);
});

test("a process that cleared its environment ends with its sandbox", async () => {
  const sandbox = await provision("cleared");
  const started = await sandbox.spawn({
    path: "sh",
    args: ["-c", "env -i setsid sleep 300 > /dev/null 2>&1 & echo $!"],
    env: { PATH },
  });
  const pieces = await Array.fromAsync(started.output);
  const pid = Number(Buffer.concat(pieces.map((piece) => piece.data)).toString());
  assert.ok(await isRunning(pid), "it runs");
  await sandbox.destroy();
  assert.ok(!(await isRunning(pid)), "it still runs");
});

test("a program that opens /dev/stdin after stdin was closed reads all of it, and its end", async () => {
  const sandbox = await provision("late");
  const late = await sandbox.spawn({
    path: "sh",
    args: ["-c", "sleep 0.4; cat /dev/stdin; cat /dev/stdin; echo end"],
    env: { PATH },
  });
  await late.write(Buffer.from("early\n"));
  await late.closeInput();
  const pieces = await Array.fromAsync(late.output);
  assert.equal(Buffer.concat(pieces.map((piece) => piece.data)).toString(), "early\nend\n");
  await sandbox.destroy();
});

async function provision(id: string): Promise<Sandbox> {
  const spec = { id, template: "base", limits: {}, allowInternetAccess: true };
  return backend.provision(spec, new AbortController().signal);
}

// One that was killed may be a zombie until whoever inherited it looks.
async function isRunning(pid: number): Promise<boolean> {
  const stat = await readFile(`/proc/${pid}/stat`, "latin1").catch(() => ") Z");
  return !stat.slice(stat.lastIndexOf(")")).startsWith(") Z");
}

async function* source(text: string): AsyncGenerator<Uint8Array> {
  yield Buffer.from(text);
}

async function sandboxDirectories(): Promise<string[]> {
  return (await readdir(directory)).filter((name) => name.startsWith("coppice-other-"));
}

/** Another process with a backend of its own on the same directory, and one sandbox in which things run. */
async function startServer() {
  const program = `
    import { LocalProcessBackend } from ${JSON.stringify(new URL("local-process-backend.js", import.meta.url).href)};
    const backend = new LocalProcessBackend(${JSON.stringify({ directory, ...SETTINGS })});
    const spec = { id: "other", template: "base", limits: {}, allowInternetAccess: true };
    const sandbox = await backend.provision(spec, new AbortController().signal);
    const env = { PATH: ${JSON.stringify(PATH)} };
    const args = ["-c", "setsid sleep 300 & sleep 300 & echo up; wait"];
    const started = await sandbox.spawn({ path: "sh", args, env });
    for await (const _ of started.output) {
      console.log(await sandbox.files.hostPath("/"));
    }
  `;
  const server = spawn(process.execPath, ["--input-type=module", "-e", program], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const [root] = (await once(createInterface(server.stdout), "line")) as [string];
  return { process: server, root };
}

test("a sandbox that is to have no network is refused rather than given one", async () => {
  const spec = { id: "offline", template: "base", limits: {}, allowInternetAccess: false };
  await assert.rejects(
    backend.provision(spec, new AbortController().signal),
    /cannot be kept from the internet/,
  );
  assert.deepEqual(await sandboxDirectories(), []);
});
