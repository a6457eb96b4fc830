import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { closeSync, openSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { setImmediate } from "node:timers/promises";
import { ProcessDescriptors } from "../process-descriptors.js";
import type { Handover } from "./handover.js";
import { SharedPipe } from "./shared-pipe.js";

const own = ProcessDescriptors.open(process.pid);
own?.close();
const skip = own === undefined && "descriptors are handed over on Linux alone";

it(
  "a replaced agent that makes its end of a pipe blocking does not block the server",
  { skip, timeout: 20_000 },
  async () => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
    const path = join(directory, "pipe");
    execFileSync("mkfifo", [path]);
    // Reads nothing.
    const agents = openSync(path, "r+");
    const descriptors = ProcessDescriptors.open(process.pid);
    try {
      const handover = { take: async () => descriptors?.take(agents) } as Handover;
      const pipe = await SharedPipe.open(handover);
      assert.ok(pipe);
      const clear = 'use Fcntl; open(my $end, "+<&=3") or die; fcntl($end, F_SETFL, O_RDWR) or die';
      const { status } = spawnSync("perl", ["-e", clear], { stdio: ["ignore", "ignore", "inherit", agents] });
      assert.equal(status, 0);
      const writing = pipe.write(Buffer.alloc(2 ** 20));
      await setImmediate();
      pipe.destroy();
      await assert.rejects(writing);
    } finally {
      descriptors?.close();
      closeSync(agents);
      await rm(directory, { recursive: true });
    }
  },
);
