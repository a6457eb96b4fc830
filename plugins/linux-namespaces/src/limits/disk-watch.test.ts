import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
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
/**
 * Fills a file in the last of many directories, in the order in which they are read. It learns by inotify when the first
 * one has been read, moves the file there, and back when the last one has been.
 */
const DODGED = `${WRITE}
os.chdir("/data")
for number in range(300): os.mkdir("d%d" % number)
first, *others, last = os.listdir()
for name in others[:100]:
    for number in range(50): os.close(os.open("%s/%d" % (name, number), os.O_CREAT))
file = os.open(last + "/big", os.O_CREAT | os.O_RDWR)
if os.fork() == 0:
    for _ in range(${WRITTEN_MIB}):
        os.write(file, bytes(2 ** 20))
        time.sleep(0.01)
    time.sleep(120)
system = ctypes.CDLL(None)
events = system.inotify_init()
closed = 0x10
watches = {system.inotify_add_watch(events, name.encode(), closed): name for name in (first, last)}
while True:
    watch = int.from_bytes(os.read(events, 16)[:4], "little")
    there, here = (last, first) if watches[watch] == first else (first, last)
    try: os.rename(there + "/big", here + "/big")
    except FileNotFoundError: pass
`;
const MANY = `
import os
for folder in range(20):
    os.mkdir("/data/%d" % folder)
    for number in range(1000): os.close(os.open("/data/%d/%d" % (folder, number), os.O_CREAT))
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
  "is moved on and on": `${WRITE}
for number in range(10000): os.close(os.open("f%d" % number, os.O_CREAT))
os.mkdir("d0")
file = os.open("d0/big", os.O_CREAT | os.O_RDWR)
if os.fork() == 0:
    fill(file)
    time.sleep(120)
number = 0
while True:
    os.rename("d%d" % number, "d%d" % (number + 1))
    number += 1
`,
  "is in inodes alone": `${WRITE}
for number in range(${WRITTEN_MIB} * 256): os.close(os.open("f%d" % number, os.O_CREAT))
time.sleep(120)
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

  it("ends one that slept through many looks beside others that sleep, and then writes fast", async (context) => {
    if (isHeld) return context.skip("the file system holds the limit");
    const others = [await makeSandbox(opened.backend), await makeSandbox(opened.backend)];
    const sandbox = await makeSandbox(opened.backend);
    const startedAtMs = performance.now();
    const slept = `sleep 3; for _ in $(seq 100); do head -c 16M /dev/zero >> ~/big; done; sleep 120`;
    assert.equal(await lossOf(sandbox, slept), "out of disk");
    assert.ok(performance.now() - startedAtMs < 60_000, "only a measurement of each minute found it");
    for (const other of others) {
      assert.deepEqual((await runScript(other, "true")).exit, { code: 0 });
      await other.destroy();
    }
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

  it("ends sandboxes that fill a volume past its size, which is read-only from then on", async (context) => {
    if (isHeld) return context.skip("the file system holds the limit");
    const { volumes } = opened.backend;
    await volumes.make({ id: "small", sizeMiB: LIMIT_MIB });
    const mounts = [{ volume: "small", path: "/data", readOnly: false }];
    const [writer, other] = [
      await makeSandbox(opened.backend, { mounts }),
      await makeSandbox(opened.backend, { mounts }),
    ];
    const untouched = await makeSandbox(opened.backend);
    // Slow enough for an early end to show: a fast disk takes all of it between two looks.
    const fill = `for _ in $(seq ${WRITTEN_MIB}); do head -c 1M /dev/zero >> /data/big; sleep 0.005; done; sleep 120`;
    assert.equal(await lossOf(writer, fill), "out of disk");
    assert.equal(await other.lost, "out of disk");
    await other.destroy();
    assert.ok((await volumes.usage("small")) < (WRITTEN_MIB / 2) * 2 ** 20, "it was not ended early");
    const later = await makeSandbox(opened.backend, { mounts });
    const { output } = await runScript(later, "echo x > /data/more || test -s /data/big && echo kept");
    assert.match(output, /kept/);
    assert.equal((await runScript(untouched, "true")).exit.code, 0);
    await Promise.all([later.destroy(), untouched.destroy()]);
    await volumes.remove("small");
  });

  it("watches volumes of a sandbox that the next server adopts", async (context) => {
    if (isHeld) return context.skip("the file system holds the limit");
    const { volumes } = opened.backend;
    await volumes.make({ id: "kept", sizeMiB: LIMIT_MIB });
    const sandbox = await makeSandbox(opened.backend, {
      mounts: [{ volume: "kept", path: "/data", readOnly: false }],
    });
    await opened.backend.close();
    const again = (await opened.backend.recover()).find(({ id }) => id === sandbox.id);
    assert.ok(again);
    const fill = `dd if=/dev/zero of=/data/big bs=1M count=${WRITTEN_MIB}; sleep 120`;
    assert.equal(await lossOf(again, fill), "out of disk");
    await volumes.remove("kept");
  });

  it("leaves no sandbox frozen when the server stops while it measures", async (context) => {
    if (isHeld) return context.skip("the file system holds the limit");
    const { backend, directory } = opened;
    await backend.volumes.make({ id: "many", sizeMiB: 2048 });
    const mounts = [{ volume: "many", path: "/data", readOnly: false }];
    const sandbox = await makeSandbox(backend, { mounts });
    const { id } = sandbox;
    // So many that a measurement takes a while.
    await runScript(sandbox, `python3 -c '${MANY}'`);
    const record = await readFile(join(directory, "sandboxes", id, "sandbox.json"), "utf8");
    const { freezer } = (JSON.parse(record) as { groups: { freezer: { version: number; path: string } } })
      .groups;
    const [file, frozen] =
      freezer.version === 2
        ? (["cgroup.events", /^frozen 1$/m] as const)
        : (["freezer.state", /^FROZEN$/m] as const);
    const isFrozen = async () => frozen.test(await readFile(join(freezer.path, file), "utf8"));
    await backend.close();
    // The next server measures what it has adopted.
    const adopting = backend.recover();
    for (let looks = 0; !(await isFrozen()); looks++) assert.ok(looks < 100_000, "it is never frozen");
    await adopting;
    await backend.close();
    assert.equal(await isFrozen(), false);
    const again = (await backend.recover()).find((sandbox) => sandbox.id === id);
    assert.ok(again);
    await again.destroy();
    await backend.volumes.remove("many");
  });

  it("finds what a removed file of a volume holds", async (context) => {
    if (isHeld) return context.skip("the file system holds the limit");
    if (process.getuid?.() !== 0) return context.skip("only root sees what its sandboxes hold open");
    const { volumes } = opened.backend;
    await volumes.make({ id: "hidden", sizeMiB: LIMIT_MIB });
    const mounts = [{ volume: "hidden", path: "/data", readOnly: false }];
    const sandbox = await makeSandbox(opened.backend, { mounts });
    const script = HIDDEN["was removed and is open in four processes"].replace("/home/user", "/data");
    assert.equal(await lossOf(sandbox, `python3 -c '${script}'`), "out of disk");
    await volumes.remove("hidden");
  });

  it("finds what moves within a volume to where a measurement has been", async (context) => {
    if (isHeld) return context.skip("the file system holds the limit");
    const { volumes } = opened.backend;
    await volumes.make({ id: "dodged", sizeMiB: LIMIT_MIB });
    const mounts = [{ volume: "dodged", path: "/data", readOnly: false }];
    const sandbox = await makeSandbox(opened.backend, { mounts });
    assert.equal(await lossOf(sandbox, `python3 -c '${DODGED}'`), "out of disk");
    const used = await volumes.usage("dodged");
    assert.ok(used < 4 * LIMIT_MIB * 2 ** 20, `it was ended at ${used} bytes`);
    await volumes.remove("dodged");
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
