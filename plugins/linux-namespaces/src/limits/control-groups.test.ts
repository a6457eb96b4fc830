import assert from "node:assert/strict";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { ControlGroup } from "./control-groups.js";
import { type Place, testApart } from "../testing/test-apart.js";
import { reasonToSkip } from "../testing/test-backend.js";

/** Hides all hierarchies but version 2, like a host without version 1. */
const ONLY_VERSION_2 = 'umount -l /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup; exec "$@"';
const UNIFIED: Place = {
  uid: 0,
  enter: ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-ec", ONLY_VERSION_2, "sh"],
};

const FILES = {
  "memory.max": "max",
  "memory.swap.max": "max",
  "cpu.max": "max 100000",
  "pids.max": "max",
  "memory.current": "1048576\n",
  "memory.stat": "anon 4096\nfile 8192\nkernel 0\n",
  "memory.events": "low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n",
  "cpu.stat": "usage_usec 1234\nuser_usec 1000\nsystem_usec 234\n",
};

describe("control groups of version 2", { concurrency: 1 }, () => {
  // A kernel with its controllers in version 1 has none here: these are fakes of its files.
  it("limits and usage use the format of its files", async () => {
    const path = await mkdtemp(join(tmpdir(), "coppice-group-"));
    try {
      for (const [name, text] of Object.entries(FILES)) await writeFile(join(path, name), text);
      const at = { version: 2, path } as const;
      const group = new ControlGroup({ memory: at, cpu: at, pids: at, freezer: at });
      assert.equal(group.unifiedPath, path);
      assert.deepEqual(group.joinFiles, []);
      assert.ok(group.canLimit && group.canFreeze);
      await group.limit({ memoryMiB: 64, cpuCount: 0.5, processes: 32 });
      const written = async (name: string): Promise<string> => readFile(join(path, name), "utf8");
      // The fake keeps the end of a longer earlier text.
      assert.match(await written("memory.max"), /^67108864/);
      assert.match(await written("memory.swap.max"), /^0/);
      assert.match(await written("cpu.max"), /^50000 100000/);
      assert.match(await written("pids.max"), /^32/);
      await writeFile(join(path, "memory.current"), "2097152\n");
      assert.deepEqual(await group.usage(), {
        cpuMicros: 1234,
        memoryBytes: 2 * 2 ** 20,
        memoryCacheBytes: 8192,
      });
      await writeFile(join(path, "pids.events"), "max 4\n");
      assert.deepEqual(group.shortageCounts(), { memory: 2, processes: 4 });
      assert.equal(group.clock, "usage_usec 1234");
    } finally {
      await rm(path, { recursive: true });
    }
  });

  it(
    "the clock of a group is read again only once the time of all groups has moved",
    { timeout: 60_000 },
    async () => {
      const above = await mkdtemp(join(tmpdir(), "coppice-group-"));
      try {
        const own = join(above, "own");
        await mkdir(own);
        const set = async (all: string, text: string): Promise<void> => {
          await writeFile(join(own, "cpuacct.usage"), text);
          await writeFile(join(above, "cpuacct.usage"), all);
        };
        const group = new ControlGroup({ cpuacct: { version: 1, path: own } });
        const recent = (): string | undefined => group.recentClock;
        await set("10", "5");
        assert.equal(recent(), "5");
        await set("12", "7");
        while (recent() !== "7") await sleep(1);
        // No kernel counts so: the text shows that it was not read.
        await set("12", "9");
        assert.equal(group.clock, "9");
        await sleep(50);
        assert.equal(recent(), "7");
        await rm(join(above, "cpuacct.usage"));
        while (recent() !== "9") await sleep(1);
      } finally {
        await rm(above, { recursive: true });
      }
    },
  );

  it("a sandbox whose processes wait for the disk is frozen after their wait", async () => {
    const path = await mkdtemp(join(tmpdir(), "coppice-group-"));
    try {
      await writeFile(join(path, "cgroup.freeze"), "0");
      await writeFile(join(path, "cgroup.events"), "populated 1\nfrozen 0\n");
      const freezing = new ControlGroup({ freezer: { version: 2, path } }).freeze();
      await sleep(1_500);
      await writeFile(join(path, "cgroup.events"), "populated 1\nfrozen 1\n");
      await freezing;
      assert.equal(await readFile(join(path, "cgroup.freeze"), "utf8"), "1");
    } finally {
      await rm(path, { recursive: true });
    }
  });

  const skip = reasonToSkip() ?? (process.getuid?.() === 0 ? false : "only root can take version 1 away");

  it("sandboxes run, freeze and end in them without version 1", { skip }, (context) =>
    testApart(context, UNIFIED, ["testing/unified-cases.js"]),
  );
});
