import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import type { Sandbox } from "@coppice/core/backend";
import { type TestBackend, wholeLimits, openTestBackend, reasonToSkip } from "../testing/test-backend.js";
import { makeSandbox, runScript } from "../testing/test-sandbox.js";

const LIMIT_MIB = 64;
/** Well above the limit, but bounded. */
const WRITTEN_MIB = 1_024;
/** Runs until the watch ends the sandbox. */
const FAST = `dd if=/dev/zero of=/home/user/big bs=1M count=${WRITTEN_MIB}; sleep 120`;
const WRITE = `
import ctypes, mmap, os, threading, time
def write(path):
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    if path != "deep": os.unlink(path)
    return file
def fill(file):
    for _ in range(${WRITTEN_MIB}):
        os.write(file, bytes(2 ** 20))
os.chdir("/home/user")
`;
/** Ways to write where no directory entry of the sandbox leads. */
const HIDDEN = {
  "was removed and is open in four processes": `${WRITE}
file = write("gone")
children = [os.fork() for _ in range(3)]
if all(children): fill(file)
time.sleep(120)
`,
  "is below more directories than a process can hold open": `${WRITE}
for _ in range(2000):
    os.mkdir("d")
    os.chdir("d")
fill(write("deep"))
time.sleep(120)
`,
  "is open in a thread with a separate table of descriptors": `${WRITE}
def run():
    assert ctypes.CDLL(None).unshare(0x400) == 0
    fill(write("gone"))
    time.sleep(120)
threading.Thread(target=run).start()
`,
  "is mapped but not open": `${WRITE}
file = write("gone")
os.ftruncate(file, ${WRITTEN_MIB} * 2 ** 20)
memory = mmap.mmap(file, ${WRITTEN_MIB} * 2 ** 20)
os.closerange(3, 64)
for at in range(0, len(memory), 2 ** 20):
    memory[at : at + 2 ** 20] = bytes([1]) * 2 ** 20
time.sleep(120)
`,
};

describe("the disk of sandboxes without project quotas", { skip: reasonToSkip() ?? false }, () => {
  let opened: TestBackend;
  let isHeld = false;

  before(async () => {
    opened = await openTestBackend({ limits: { diskMiB: LIMIT_MIB } });
    isHeld = (await wholeLimits(opened.backend)).has("diskMiB");
  });
  after(() => opened[Symbol.asyncDispose]());

  const lossOf = async (sandbox: Sandbox, script: string) => {
    const running = runScript(sandbox, script).catch(() => undefined);
    const loss = await sandbox.lost;
    await sandbox.destroy();
    await running;
    return loss;
  };

  it("ends only the sandbox that a program fills past its limit", async (context) => {
    if (isHeld) return context.skip("the file system holds the limit");
    const sandbox = await makeSandbox(opened.backend);
    const other = await makeSandbox(opened.backend);
    await runScript(other, `head -c ${(LIMIT_MIB - 8) * 2 ** 20} /dev/zero > ~/fits`);
    assert.equal(await lossOf(sandbox, FAST), "out of disk");
    assert.deepEqual((await runScript(other, "rm ~/fits")).exit, { code: 0 });
    await other.destroy();
    assert.deepEqual(await opened.leaks(), []);
  });

  for (const [how, script] of Object.entries(HIDDEN)) {
    it(`finds what ${how}`, async (context) => {
      if (isHeld) return context.skip("the file system holds the limit");
      if (process.getuid?.() !== 0) return context.skip("only root sees what its sandboxes hold open");
      const sandbox = await makeSandbox(opened.backend);
      assert.equal(await lossOf(sandbox, `python3 -c '${script}'`), "out of disk");
    });
  }

  it("ends a sandbox that exceeds its limit when the next server adopts it", async (context) => {
    if (isHeld) return context.skip("the file system holds the limit");
    const sandbox = await makeSandbox(opened.backend);
    await opened.backend.close();
    const [again] = await opened.backend.recover();
    assert.equal(again?.id, sandbox.id);
    assert.equal(await lossOf(again, FAST), "out of disk");
  });

  it("is only reported if so configured", async (context) => {
    if (isHeld) return context.skip("the file system holds the limit");
    await using reporting = await openTestBackend({ limits: { diskMiB: LIMIT_MIB }, diskLimit: "report" });
    const sandbox = await makeSandbox(reporting.backend);
    const { exit } = await runScript(
      sandbox,
      `head -c ${2 * LIMIT_MIB * 2 ** 20} /dev/zero > ~/big; sleep 2`,
    );
    assert.deepEqual(exit, { code: 0 });
    await sandbox.destroy();
  });
});
