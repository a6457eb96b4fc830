// Tests of egress for a server that is not root, run on a separate host by `uplink.test.ts`.
import assert from "node:assert/strict";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { networkInterfaces } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { ALL_TRAFFIC } from "@coppice/core/backend";
import { eventually } from "@coppice/core/testing";
import type { Init } from "../launcher/launcher.js";
import { isAlive, readProcess } from "../launcher/sandbox-record.js";
import { type Internet, openInternet } from "./open-internet.js";
import { openTestBackend, type TestBackend } from "./test-backend.js";
import { makeSandbox, reach } from "./test-sandbox.js";

const NEW_ADDRESS = "198.51.100.7";

async function open(internet: Internet): Promise<TestBackend> {
  return openTestBackend({ egress: "nat", egressRange: internet.egressRange });
}

async function processOf({ directory }: TestBackend, record: "init" | "program"): Promise<Init> {
  const found = await readProcess(join(directory, "uplink", record));
  assert.ok(found, `there is no ${record}`);
  return found;
}

async function kill(victim: Init): Promise<void> {
  process.kill(victim.pid, "SIGKILL");
  await eventually("it ends", async () => !(await isAlive(victim)));
}

it("a program that ends is started again, and what was denied stays denied", async () => {
  await using internet = await openInternet();
  const { port } = internet;
  const [allowed, denied] = internet.addresses;
  await using opened = await open(internet);
  const egress = { allowOut: [], denyOut: [denied] };
  const sandbox = await makeSandbox(opened.backend, { allowInternetAccess: true, egress });
  assert.equal(await reach(sandbox, allowed, port), "reached");
  const first = await processOf(opened, "program");
  await kill(first);
  await eventually("it is reached again", async () => (await reach(sandbox, allowed, port)) === "reached");
  assert.notEqual((await processOf(opened, "program")).pid, first.pid);
  assert.notEqual(await reach(sandbox, denied, port), "reached");
  await sandbox.destroy();
  assert.deepEqual(await opened.leaks(), []);
});

it("the next server adopts it, and ends it when no sandbox is left", async () => {
  await using internet = await openInternet();
  const { port } = internet;
  const [outside] = internet.addresses;
  await using opened = await open(internet);
  await makeSandbox(opened.backend, { allowInternetAccess: true });
  const processes = [await processOf(opened, "init"), await processOf(opened, "program")];
  await opened.backend.close();
  const [again] = await opened.backend.recover();
  assert.ok(again);
  assert.deepEqual([await processOf(opened, "init"), await processOf(opened, "program")], processes);
  const later = await makeSandbox(opened.backend, { allowInternetAccess: true });
  for (const sandbox of [again, later]) {
    assert.equal(await reach(sandbox, outside, port), "reached");
    await sandbox.destroy();
  }
  assert.deepEqual(await opened.leaks(), []);
  await opened.backend.close();
  for (const each of processes) assert.equal(await isAlive(each), false);
  assert.equal(existsSync(join(opened.directory, "uplink")), false);
});

it("if it is gone, sandboxes are connected again, and reach nothing if they had rules", async () => {
  await using internet = await openInternet();
  const { port } = internet;
  const [outside] = internet.addresses;
  await using opened = await open(internet);
  const free = await makeSandbox(opened.backend, { allowInternetAccess: true });
  const egress = { allowOut: [outside], denyOut: [ALL_TRAFFIC] };
  const ruled = await makeSandbox(opened.backend, { allowInternetAccess: true, egress });
  const processes = [await processOf(opened, "init"), await processOf(opened, "program")];
  await opened.backend.close();
  for (const each of processes) await kill(each);
  const adopted = new Map((await opened.backend.recover()).map((sandbox) => [sandbox.id, sandbox]));
  const [freeAgain, ruledAgain] = [adopted.get(free.id), adopted.get(ruled.id)];
  assert.ok(freeAgain !== undefined && ruledAgain !== undefined);
  assert.equal(await reach(freeAgain, outside, port), "reached");
  assert.notEqual(await reach(ruledAgain, outside, port), "reached");
  await ruledAgain.networking?.restrict(egress);
  assert.equal(await reach(ruledAgain, outside, port), "reached");
  await Promise.all([freeAgain.destroy(), ruledAgain.destroy()]);
  assert.deepEqual(await opened.leaks(), []);
});

it("a new address of the host is blocked, too", async () => {
  await using internet = await openInternet();
  const { port } = internet;
  await using host = createServer((socket) => socket.pipe(socket)).listen(port, "0.0.0.0");
  await once(host, "listening");
  await using opened = await open(internet);
  const sandbox = await makeSandbox(opened.backend, { allowInternetAccess: true });
  await writeFile(process.env["COPPICE_TEST_ADDRESSES"] ?? "", `${NEW_ADDRESS}/32\n`);
  const isGiven = () => JSON.stringify(networkInterfaces()).includes(NEW_ADDRESS);
  await eventually("the host has the address", () => Promise.resolve(isGiven()));
  const isRefused = async () => (await reach(sandbox, NEW_ADDRESS, port)) !== "reached";
  await eventually("the sandbox does not reach it", isRefused);
  await sandbox.destroy();
});

it("a server reports a missing program and the output of a failing one, and leaves nothing", async () => {
  await using internet = await openInternet();
  const { egressRange } = internet;
  const missing = { egress: "nat", egressRange, egressProgram: "/nonexistent/pasta" } as const;
  await using without = await openTestBackend(missing);
  await assert.rejects(without.backend.check(), {
    code: "failed_precondition",
    message: /without root needs \/nonexistent\/pasta, which this host does not have/,
  });
  const programs = join(without.directory, "broken");
  await mkdir(programs);
  const broken = join(programs, "pasta");
  await writeFile(broken, "#!/bin/sh\necho there is no way out >&2\nexit 1\n", { mode: 0o755 });
  await using opened = await openTestBackend({ ...missing, egressProgram: broken });
  await assert.rejects(opened.backend.check(), /pasta ended: there is no way out/);
  assert.equal(existsSync(join(opened.directory, "uplink")), false);
});
