import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFile, readdir, statfs } from "node:fs/promises";
import { join } from "node:path";
import { describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { openInternet, reasonWithoutEgress } from "./testing/open-internet.js";
import { openTestBackend, reasonToSkip } from "./testing/test-backend.js";
import { makeSandbox, runScript } from "./testing/test-sandbox.js";

const CYCLES = Number(process.env["COPPICE_TEST_CYCLES"] ?? 100);
const AT_ONCE = 4;
const EXT4 = 0xef53;

async function descriptors(): Promise<number> {
  return (await readdir("/proc/self/fd")).length;
}

async function processesOf(ids: readonly string[]): Promise<string[]> {
  const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name));
  const found = await Promise.all(
    pids.map(async (pid) => {
      const text = await readFile(`/proc/${pid}/environ`, "latin1").catch(() => "");
      return ids.some((id) => text.includes(id)) ? [pid] : [];
    }),
  );
  return found.flat();
}

describe("making and destroying sandboxes", { skip: reasonToSkip() ?? false }, () => {
  it(`leaves nothing after ${CYCLES} of them`, async (context) => {
    const missing = reasonWithoutEgress();
    if (missing !== undefined) context.diagnostic(`without interfaces and network rules: ${missing}`);
    await using internet = missing === undefined ? await openInternet() : undefined;
    await using opened = await openTestBackend(
      internet && { egress: "nat", egressRange: internet.egressRange },
    );
    const spec = internet && {
      allowInternetAccess: true,
      egress: { allowOut: [], denyOut: [internet.addresses[0]] },
    };
    const warm = await makeSandbox(opened.backend, spec);
    await warm.destroy();
    const before = await descriptors();
    const ids: string[] = [];
    const cycle = async (): Promise<void> => {
      const sandbox = await makeSandbox(opened.backend, spec);
      ids.push(sandbox.id);
      const { exit } = await runScript(sandbox, "echo x > file; setsid sleep 300 > /dev/null 2>&1 & true");
      assert.deepEqual(exit, { code: 0 });
      await sandbox.destroy();
    };
    for (let done = 0; done < CYCLES; done += AT_ONCE)
      await Promise.all(Array.from({ length: AT_ONCE }, cycle));
    assert.deepEqual(await processesOf(ids), []);
    assert.deepEqual(await opened.leaks(), []);
    // Sockets close a moment after their sandbox.
    for (let wait = 0; wait < 200 && (await descriptors()) !== before; wait++) await sleep(50);
    assert.equal(await descriptors(), before);
  });

  it("does not get slower with their number where files are on ext4, which spreads them", async (context) => {
    await using opened = await openTestBackend();
    await (await makeSandbox(opened.backend)).destroy();
    const sandboxes = join(opened.directory, "sandboxes");
    if ((await statfs(sandboxes)).type !== EXT4) {
      context.skip("the directory of temporary files is not on ext4");
      return;
    }
    const { stdout } = await promisify(execFile)("lsattr", ["-d", sandboxes]);
    assert.match(stdout, /^\S*T\S* /);
  });
});
