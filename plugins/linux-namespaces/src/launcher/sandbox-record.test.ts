import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { isAlive, readProcess } from "./sandbox-record.js";

const skip = process.platform !== "linux" && "there is no /proc";

it(
  "a process is alive until it ends, also while nothing has waited for it, and not by its number alone",
  { skip },
  async () => {
    // The shell becomes a program that waits for no child.
    const parent = spawn("/bin/sh", ["-c", "exec 3<&0; cat <&3 > /dev/null & echo $!; exec sleep 60 3<&-"]);
    try {
      const [text] = (await once(parent.stdout, "data")) as [Buffer];
      const pid = Number(text);
      const fields = async () =>
        (await readFile(`/proc/${pid}/stat`, "latin1")).split(") ").at(-1)?.split(" ") ?? [];
      const start = (await fields())[19] ?? "";
      assert.equal(await isAlive({ pid, start }), true);
      assert.equal(await isAlive({ pid, start: `${Number(start) + 1}` }), false);
      parent.stdin.end();
      while ((await fields())[0] !== "Z") await sleep(10);
      assert.equal(await isAlive({ pid, start }), false);
    } finally {
      parent.kill("SIGKILL");
      await once(parent, "exit");
    }
  },
);

it("a record that cannot be read is not taken for none", async () => {
  assert.equal(await readProcess(join(tmpdir(), "no such record")), undefined);
  await assert.rejects(readProcess(tmpdir()), { reason: "host_resources_exhausted" });
});
