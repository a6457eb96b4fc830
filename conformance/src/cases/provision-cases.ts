import assert from "node:assert/strict";
import { posix } from "node:path";
import type { ConformanceCase } from "../kit/conformance-case.js";

/** Creation and removal of sandboxes. */
export const provisionCases: readonly ConformanceCase[] = [
  {
    name: "a new sandbox has the id it was given, an empty home and a /tmp to write to",
    group: "provision",
    async run(context) {
      assert.equal(context.sandbox.id, context.ids[0]);
      assert.ok(posix.isAbsolute(context.user.home));
      assert.equal((await context.sandbox.files.stat(context.user.home)).kind, "directory");
      assert.equal((await context.sandbox.files.stat("/tmp")).kind, "directory");
      await context.succeed("touch here && rm here");
      await context.write("/tmp/there", "");
    },
  },
  {
    name: "it knows its users and no others",
    group: "provision",
    async run(context) {
      const { sandbox, user } = context;
      assert.deepEqual(await sandbox.user(user.name), user);
      assert.equal((await sandbox.user("root")).name, "root");
      await context.refuses(
        sandbox.user("nobody-of-that-name"),
        "not_found",
        /^unknown user nobody-of-that-name$/,
      );
    },
  },
  {
    name: "eight sandboxes made at once share no files",
    group: "provision",
    async run(context) {
      const others = await Promise.all(Array.from({ length: 8 }, () => context.provision()));
      await Promise.all(
        others.map((other) => context.succeed("echo $1 > mine", { in: other, args: [other.id] })),
      );
      for (const other of others) {
        assert.equal((await context.read(context.home("mine"), other)).toString(), `${other.id}\n`);
      }
      await context.refuses(context.sandbox.files.stat(context.home("mine")), "not_found");
    },
  },
  {
    name: "an aborted provision rejects and leaves nothing",
    group: "provision",
    async run(context) {
      await assert.rejects(context.provision({}, AbortSignal.abort(new Error("not wanted"))));
    },
  },
  {
    name: "a provision that is aborted under way makes a whole sandbox or nothing",
    group: "provision",
    async run(context) {
      for (const delayMs of [0, 1, 3]) {
        const abort = new AbortController();
        const making = context.provision({}, abort.signal);
        setTimeout(() => abort.abort(new Error("not wanted")), delayMs);
        const [made] = await Promise.allSettled([making]);
        if (made.status === "fulfilled") await context.succeed("true", { in: made.value });
      }
    },
  },
  {
    name: "destroy ends processes that left their group, session and parent",
    group: "provision",
    async run(context) {
      const script = `
        # FreeBSD has no setsid(1): its daemon(8) makes a session.
        escape=setsid; command -v setsid > /dev/null || escape=/usr/sbin/daemon
        $escape sh -c 'echo $$ > escaped; exec sleep 300' > /dev/null 2>&1 &
        sh -c 'sleep 300 > /dev/null 2>&1 & echo $! > orphaned'
        trap '' TERM HUP INT
        sleep 300 & wait`;
      const running = await context.start(script);
      await context.until("the escapees run", async () => {
        const names = (await context.list(context.user.home)).map((entry) => entry.name);
        return names.includes("escaped") && names.includes("orphaned");
      });
      await context.sandbox.destroy();
      assert.equal((await running.exit).signal, "SIGKILL");
    },
  },
  {
    name: "destroy ends the output of its processes",
    group: "provision",
    async run(context) {
      const running = await context.start("echo one; sleep 300");
      const output = running.output[Symbol.asyncIterator]();
      assert.equal((await output.next()).done, false);
      const next = output.next();
      await context.sandbox.destroy();
      const { done } = await context.within(2_000, "the output ends", next);
      assert.equal(done, true);
    },
  },
  {
    name: "destroy removes a tree that is deep, wide and closed to its owner",
    group: "provision",
    async run(context) {
      await context.succeed(`
        mkdir closed && touch closed/file && chmod 000 closed
        i=0; while [ $i -lt 300 ]; do mkdir deep && cd deep && i=$((i + 1)); done
        i=0; while [ $i -lt 300 ]; do : > "wide$i"; i=$((i + 1)); done
        ln -s / up`);
      await context.sandbox.destroy();
    },
  },
  {
    name: "destroy can be repeated, also at the same time",
    group: "provision",
    async run(context) {
      await context.start("sleep 300");
      await Promise.all([context.sandbox.destroy(), context.sandbox.destroy()]);
      await context.sandbox.destroy();
    },
  },
  {
    name: "destroy while processes start and files are written leaves nothing",
    group: "provision",
    async run(context) {
      const { sandbox } = context;
      const starting = Array.from({ length: 8 }, () => context.start("sleep 300"));
      const writing = Array.from({ length: 8 }, (_, index) =>
        context.write(context.home(`directory${index}/file`), Buffer.alloc(2_000_000)),
      );
      const settled = Promise.allSettled([...starting, ...writing]);
      await sandbox.destroy();
      await context.within(5_000, "what was under way settles", settled);
    },
  },
  {
    name: "a destroyed sandbox refuses to do anything",
    group: "provision",
    async run(context) {
      const { sandbox, user } = context;
      await sandbox.destroy();
      const codes = ["unavailable", "not_found", "failed_precondition"] as const;
      await context.refuses(context.start("true"), codes);
      await context.refuses(sandbox.files.stat(user.home), codes);
      await context.refuses(context.write(`${user.home}/file`, "late"), codes);
      await context.refuses(sandbox.dial(1, new AbortController().signal), codes);
    },
  },
  {
    name: "its usage is reported in plausible numbers",
    group: "provision",
    async run(context) {
      const running = await context.start("echo up; exec sleep 300");
      for await (const _ of running.output) break;
      await context.write(context.home("blob"), Buffer.alloc(300_000, 1));
      const stats = await context.sandbox.stats();
      for (const [name, value] of Object.entries(stats)) {
        assert.ok(Number.isFinite(value) && value >= 0, `${name} is ${String(value)}`);
      }
      assert.ok(stats.cpuCount >= 1);
      assert.ok(stats.cpuUsedPercent <= 100 * stats.cpuCount);
      assert.ok(stats.memoryUsedBytes <= stats.memoryTotalBytes);
      assert.ok(stats.diskUsedBytes <= stats.diskTotalBytes);
      const { cpuSeconds } = context.sandbox;
      if (cpuSeconds === undefined) return;
      await context.sandbox.stats();
      assert.ok(cpuSeconds >= 0 && (context.sandbox.cpuSeconds ?? -1) >= cpuSeconds, "processor time falls");
    },
  },
];
