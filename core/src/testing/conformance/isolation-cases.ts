import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import type { ConformanceCase } from "./conformance-case.js";

/** What processes of an isolating backend cannot see or do. Links in paths are tried by the file cases. */
export const isolationCases: readonly ConformanceCase[] = [
  {
    name: "files of the host are invisible to processes",
    group: "isolation",
    needs: ["isolation"],
    async run(context) {
      const canary = await context.canary();
      const { stdout } = await context.shell('cat "$1"; ls "$2"; cat "/proc/1/root$1"', {
        args: [canary.file, canary.directory],
      });
      assert.equal(stdout.toString(), "");
      await canary.verify();
    },
  },
  {
    name: "processes of other sandboxes and of the host are invisible",
    group: "isolation",
    needs: ["isolation"],
    async run(context) {
      const marker = randomBytes(6).toString("hex");
      const other = await context.provision();
      const visible =
        'echo "$1" | cut -c 2- > needle; cat /proc/[0-9]*/cmdline 2> /dev/null | tr "\\0" "\\n" | grep -c "^$(cat needle)$"';
      const running = await context.start(`sleep 300; : ${marker}`, { in: other, args: [marker] });
      const args = [`-${marker}`];
      assert.equal((await context.shell(visible, { in: other, args })).stdout.toString().trim(), "1");
      assert.equal((await context.shell(visible, { args })).stdout.toString().trim(), "0");
      const { stdout } = await context.shell("cat /proc/[0-9]*/cmdline");
      assert.ok(!stdout.includes(process.execPath), "the server's process is visible");
      await running.kill("SIGKILL", "group");
    },
  },
  {
    name: "the signals of a sandbox stay in it",
    group: "isolation",
    needs: ["isolation"],
    async run(context) {
      const other = await context.provision();
      const bystander = await context.start("echo up; exec sleep 300", { in: other });
      await bystander.output[Symbol.asyncIterator]().next();
      await context.shell('kill -9 "$1"', { args: [String(bystander.pid)] });
      assert.ok(await context.isAlive(bystander.pid, other), "a process of another sandbox was killed");
      await bystander.kill("SIGKILL");
    },
  },
];
