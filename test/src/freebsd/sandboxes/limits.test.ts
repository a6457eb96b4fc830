import assert from "node:assert/strict";
import { after, afterEach, before, describe, it } from "node:test";
import type { Logger } from "@coppice/core";
import type { Limits, Sandbox } from "@coppice/core/backend";
import type { JailBackend } from "@coppice/plugin-jail-freebsd";
import { eventually } from "@coppice/core/testing";
import {
  type FreebsdHost,
  openFreebsdHost,
  reasonWithoutFreebsdHost,
} from "../../harness/freebsd/freebsd-host.js";
import { newId } from "../../harness/freebsd/jail-faults.js";

const skip = reasonWithoutFreebsdHost() ?? false;
const MEBIBYTE = 2 ** 20;

describe("limits of jail-freebsd", { skip }, () => {
  let host: FreebsdHost;
  let backend: JailBackend;
  /** Programs of the host that have run, with their first argument. */
  let ran: string[] = [];

  const log = {
    debug: ({ program, args = [] }: { program?: string; args?: readonly string[] }) =>
      program !== undefined && ran.push(`${program} ${args[0] ?? ""}`),
    info: () => undefined,
    warn: () => undefined,
    error: () => undefined,
  } as unknown as Logger;

  before(async () => {
    host = await openFreebsdHost();
    backend = host.backend({}, { log });
  });
  afterEach(async () => {
    assert.deepEqual(await host.leaks(), []);
  });
  after(async () => {
    await backend.close();
    await host[Symbol.asyncDispose]();
  });

  async function make(limits: Limits = {}): Promise<Sandbox> {
    const spec = { id: newId(), template: "base", limits, allowInternetAccess: false };
    return backend.provision(spec, new AbortController().signal);
  }

  const rulesOf = async ({ id }: Sandbox): Promise<string[]> =>
    (await host.run(host.settings.programs.rctl))
      .split("\n")
      .filter((line) => line.startsWith(`jail:e2b-${id}:`))
      .map((line) => line.replace(`jail:e2b-${id}:`, ""))
      .toSorted();

  it("are rules of the jail's name, which change with them and go with it", async () => {
    const sandbox = await make({ memoryMiB: 256, cpuCount: 1.5, processes: 100, diskMiB: 512 });
    const made = [
      `maxproc:deny=100`,
      `memoryuse:deny=${256 * MEBIBYTE}`,
      "nthr:deny=4096",
      "openfiles:deny=65536",
      "pcpu:deny=150",
      "pseudoterminals:deny=256",
      `swapuse:deny=${512 * MEBIBYTE}`,
    ];
    assert.deepEqual(await rulesOf(sandbox), made);
    await sandbox.resizing?.resize({ memoryMiB: 128, cpuCount: 0.5, processes: 64, diskMiB: 256 });
    const resized = [
      `maxproc:deny=64`,
      `memoryuse:deny=${128 * MEBIBYTE}`,
      "nthr:deny=4096",
      "openfiles:deny=65536",
      "pcpu:deny=50",
      "pseudoterminals:deny=256",
      `swapuse:deny=${256 * MEBIBYTE}`,
    ];
    assert.deepEqual(await rulesOf(sandbox), resized);
    const { zfs } = host.settings.programs;
    const quota = await host.run(
      zfs,
      "get",
      "-Hp",
      "-o",
      "value",
      "refquota",
      `coppice/jails/e2b-${sandbox.id}`,
    );
    assert.equal(Number(quota), 256 * MEBIBYTE);

    await backend.close();
    backend = host.backend({}, { log });
    const [found] = await backend.recover();
    assert.ok(found);
    const { cpuCount, diskTotalBytes, memoryTotalBytes } = await found.stats();
    assert.deepEqual([cpuCount, diskTotalBytes, memoryTotalBytes], [0.5, 256 * MEBIBYTE, 128 * MEBIBYTE]);
    await found.destroy();
    assert.deepEqual(await rulesOf(sandbox), []);
  });

  it("do not change when more than that is in use", async () => {
    const sandbox = await make({ diskMiB: 128 });
    await fill(sandbox, "head -c 50000000 /dev/urandom > ~/large; echo filled");
    await eventually(
      "it is told what is on the disk",
      async () => (await sandbox.stats()).diskUsedBytes > 40_000_000,
      20_000,
    );
    const rules = await rulesOf(sandbox);
    await assert.rejects(async () => sandbox.resizing?.resize({ diskMiB: 32 }), {
      code: "failed_precondition",
    });
    assert.deepEqual(await rulesOf(sandbox), rules);
    assert.equal((await sandbox.stats()).diskTotalBytes, 128 * MEBIBYTE);
    await sandbox.destroy();
  });

  it("are told with what is used, of all sandboxes by one command of each kind", async () => {
    const sandboxes = await Promise.all([make(), make(), make()]);
    const [busy] = sandboxes;
    assert.ok(busy);
    await fill(busy, "(head -c 40000000 /dev/zero; sleep 60) | tail -c 40000000 > /dev/null & echo filled");
    ran = [];
    await Promise.all(sandboxes.map((sandbox) => sandbox.stats()));
    assert.deepEqual(ran.toSorted(), ["rctl -u", "zfs get"]);
    if (host.limits.includes("memoryMiB")) {
      await eventually(
        "it is told what is in memory",
        async () => (await busy.stats()).memoryUsedBytes > 40_000_000,
        20_000,
      );
    }
    for (const sandbox of sandboxes) await sandbox.destroy();
    await assert.rejects(busy.stats(), { code: "unavailable" });
  });
});

/** Runs a script that says `filled`. */
async function fill(sandbox: Sandbox, script: string): Promise<void> {
  const env = { PATH: "/usr/bin:/bin", HOME: "/home/user" };
  const { output } = await sandbox.spawn({ path: "/bin/sh", args: ["-c", script], env, input: "none" });
  for await (const { data } of output) {
    if (Buffer.from(data).includes("filled")) return;
  }
  assert.fail("it ended without a word");
}
