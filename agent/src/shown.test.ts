import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, open, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { withoutBinary } from "./testing/agent-kinds.js";
import { agentBinary } from "./built/agent-binary.js";

const MIB = 2 ** 20;
const PROCESSORS = [0, 1, 2, 3].map((number) => `processor\t: ${number}\nmodel name\t: some\n\n`).join("");
/** Files of control groups that say the same, in the order of `ControlGroup.shownFiles`. */
const VERSIONS = {
  1: [
    String(100 * MIB),
    String(60 * MIB),
    `cache 1\nrss 2\ntotal_cache ${30 * MIB}\ntotal_rss ${20 * MIB}\ntotal_inactive_file ${16 * MIB}\ntotal_active_file ${4 * MIB}\n`,
    "50000",
    "2500000000",
  ],
  2: [
    String(100 * MIB),
    String(60 * MIB),
    `anon ${20 * MIB}\nfile ${30 * MIB}\ninactive_file ${16 * MIB}\nactive_file ${4 * MIB}\n`,
    "50000 100000",
    "usage_usec 2500000\nuser_usec 1\n",
  ],
} as const;

const skip = withoutBinary || (process.platform !== "linux" && "there are leases on Linux alone");

for (const [version, sources] of Object.entries(VERSIONS)) {
  it(
    `files that show limits are true whenever they are opened, by groups of version ${version}`,
    { skip },
    async (test) => {
      const directory = await mkdtemp(join(tmpdir(), "coppice-shown-"));
      test.after(() => rm(directory, { recursive: true }));
      const path = (name: string) => join(directory, name);
      const texts = [...sources, PROCESSORS, "cpu 1 2 3\nbtime 1700000000\n"];
      const names = texts.map((_, index) => `source${index}`);
      for (const [index, text] of texts.entries()) await writeFile(path(`source${index}`), text);
      const shown = ["meminfo", "cpuinfo", "stat", "online"];
      const handles = [
        ...(await Promise.all(names.map((name) => open(path(name), "r")))),
        ...(await Promise.all(shown.map((name) => open(path(name), "w+")))),
      ];
      const agent = spawn(agentBinary() ?? "", ["--shown", "4", "pair", "3"], {
        stdio: ["ignore", "ignore", "inherit", "pipe", ...handles.map(({ fd }) => fd)],
      });
      test.after(() => agent.kill("SIGKILL"));
      const ended = once(agent, "exit");
      // It says hello when it has them.
      await once(agent.stdio[3] ?? agent, "data");
      // Nobody else has them open, which a lease needs.
      for (const handle of handles) await handle.close();
      const kibOf = async (name: string): Promise<number> =>
        Number(new RegExp(`^${name}: +(\\d+) kB$`, "m").exec(await readFile(path("meminfo"), "utf8"))?.[1]) /
        1024;
      assert.deepEqual(
        [await kibOf("MemTotal"), await kibOf("MemFree"), await kibOf("MemAvailable"), await kibOf("Cached")],
        [100, 40, 60, 30],
      );
      assert.equal(await kibOf("AnonPages"), 20);
      // The first reader has made room for a lease.
      await writeFile(path("source1"), String(90 * MIB));
      assert.equal(await kibOf("MemFree"), 10);
      await writeFile(path("source0"), String(200 * MIB));
      assert.equal(await kibOf("MemTotal"), 200);
      assert.equal((await readFile(path("cpuinfo"), "utf8")).match(/^processor/gm)?.length, 1);
      assert.equal(await readFile(path("online"), "utf8"), "0\n");
      const stat = await readFile(path("stat"), "utf8");
      assert.match(stat, /^cpu {2}250 0 0 \d+ .*\ncpu0 250 0 0 \d+ .*\nintr 0\n(.*\n)*btime 1700000000\n/);
      agent.stdio[3]?.destroy();
      await ended;
    },
  );
}
