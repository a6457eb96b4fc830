import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import type { Sandbox } from "@coppice/core/backend";
import type { ConformanceCase, Facet } from "../kit/conformance-case.js";
import { facetOf, findAbilities } from "../kit/needs.js";
import { OutputReader } from "../kit/output-reader.js";
import { startTicking } from "../kit/ticking.js";

// Only sandboxes with an image have `committing`: see the cases of images.
const METHODS: Readonly<Record<Exclude<Facet, "committing">, readonly string[]>> = {
  pausing: ["pause", "resume"],
  stopping: ["stop", "start"],
  snapshots: ["take"],
  resizing: ["resize"],
  networking: ["restrict"],
  volumes: ["make", "list", "remove", "usage"],
  images: ["unpack", "list", "remove", "usage"],
  lost: ["then"],
};
const FACETS = Object.keys(METHODS) as readonly (keyof typeof METHODS)[];

/** @throws AssertionError with each name that differs. */
function assertDeclared<T extends string>(declared: readonly T[], present: readonly T[]): void {
  const differences = [
    ...declared.filter((name) => !present.includes(name)).map((name) => `${name}: declared, absent`),
    ...present.filter((name) => !declared.includes(name)).map((name) => `${name}: present, not declared`),
  ];
  assert.ok(differences.length === 0, differences.join("; "));
}

/** Optional parts of a sandbox: present ones work, impossible ones are absent. */
export const facetCases: readonly ConformanceCase[] = [
  {
    name: "a facet is there with all its methods, or absent",
    group: "facets",
    async run(context) {
      for (const facet of FACETS) {
        const present = facetOf(facet, context);
        if (present === undefined) continue;
        for (const method of METHODS[facet]) {
          assert.equal(typeof Reflect.get(present, method), "function", `${facet}.${method} is missing`);
        }
      }
    },
  },
  {
    name: "its facets are the declared ones",
    group: "facets",
    async run(context) {
      const { subject } = context;
      if (subject.facets === undefined) return;
      const present = FACETS.filter((facet) => facetOf(facet, context) !== undefined);
      assertDeclared<Facet>(
        subject.facets.filter((facet) => facet !== "committing"),
        present,
      );
    },
  },
  {
    name: "its abilities are the declared ones",
    group: "facets",
    async run(context) {
      const { abilities } = context.subject;
      if (abilities === undefined) return;
      assertDeclared(abilities, await findAbilities(context));
    },
  },
  {
    name: "a paused sandbox stands still and goes on where it was",
    group: "facets",
    needs: ["pausing"],
    async run(context) {
      const { sandbox } = context;
      const other = await context.provision();
      const ticking = await startTicking(context, sandbox);
      const bystander = await startTicking(context, other);
      for (let round = 0; round < 3; round++) {
        await ticking.until(ticking.ticks + 2);
        await pausingOf(sandbox).pause();
        // Earlier output may still be on its way.
        await sleep(200);
        const before = ticking.ticks;
        const elsewhere = bystander.ticks;
        await sleep(300);
        assert.equal(ticking.ticks, before, "it ticks while it is paused");
        assert.ok(bystander.ticks > elsewhere, "another sandbox was paused, too");
        await pausingOf(sandbox).resume();
        await ticking.until(before + 1);
        assert.ok(ticking.isGapless, "it did not go on where it was");
      }
      await ticking.kill();
      await bystander.kill();
    },
  },
  {
    name: "pausing and resuming can be repeated",
    group: "facets",
    needs: ["pausing"],
    async run(context) {
      const { sandbox } = context;
      const pausing = pausingOf(sandbox);
      await pausing.resume();
      await pausing.pause();
      await pausing.pause();
      await Promise.all([pausing.resume(), pausing.resume()]);
      assert.equal(await context.succeed("echo awake"), "awake\n");
      for (let round = 0; round < 20; round++) {
        await pausing.pause();
        await pausing.resume();
      }
      assert.equal(await context.succeed("echo awake"), "awake\n");
    },
  },
  {
    name: "requests to a paused sandbox are done after it resumed, or refused",
    group: "facets",
    needs: ["pausing"],
    async run(context) {
      const { sandbox } = context;
      await context.write(context.home("before"), "x");
      await pausingOf(sandbox).pause();
      const asked = [
        context.shell("echo started"),
        context.write(context.home("written"), "x"),
        context.read(context.home("before")),
        sandbox.dial(1, new AbortController().signal),
        sandbox.stats(),
      ];
      const settled = Promise.allSettled(asked);
      await sleep(200);
      await pausingOf(sandbox).resume();
      await context.within(5_000, "what was asked is answered", settled);
      assert.equal(await context.succeed("echo awake"), "awake\n");
    },
  },
  {
    name: "a connection outlives a pause",
    group: "facets",
    needs: ["pausing", { program: "python3" }],
    async run(context) {
      const script =
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); c, _ = s.accept()\nwhile data := c.recv(100): c.sendall(data.upper())";
      const reader = new OutputReader(await context.startProgram("python3", ["-c", script]));
      const [port] = await reader.sees(/^\d+(?=\n)/);
      const stream = await context.dial(Number(port));
      let answer = "";
      stream.on("data", (data: Buffer) => (answer += data.toString()));
      stream.write("one ");
      await context.until("it answers", () => answer === "ONE ");
      await pausingOf(context.sandbox).pause();
      stream.write("two");
      await sleep(200);
      assert.equal(answer, "ONE ");
      await pausingOf(context.sandbox).resume();
      await context.until("it answers again", () => answer === "ONE TWO");
      stream.destroy();
    },
  },
  {
    name: "a paused sandbox can be destroyed",
    group: "facets",
    needs: ["pausing"],
    async run(context) {
      const running = await context.start("while :; do echo x; done");
      await pausingOf(context.sandbox).pause();
      await context.within(5_000, "it is destroyed", context.sandbox.destroy());
      const { signal } = await context.within(2_000, "the exit is known", running.exit);
      assert.equal(signal, "SIGKILL");
      const codes = ["unavailable", "not_found", "failed_precondition"] as const;
      await context.refuses(() => pausingOf(context.sandbox).resume(), codes);
    },
  },
  {
    name: "a sandbox can be destroyed while it is being paused",
    group: "facets",
    needs: ["pausing"],
    async run(context) {
      const sandboxes = [context.sandbox, await context.provision(), await context.provision()];
      for (const [index, sandbox] of sandboxes.entries()) {
        await context.start("sleep 300", { in: sandbox });
        const pausing = pausingOf(sandbox).pause();
        await sleep(index);
        await context.within(5_000, "it is destroyed", Promise.allSettled([pausing, sandbox.destroy()]));
        await sandbox.destroy();
      }
    },
  },
  {
    name: "a resized sandbox has its new limits at once, and can be resized back",
    group: "facets",
    needs: ["resizing"],
    async run(context) {
      const sandbox = await context.provision({ limits: { memoryMiB: 256, cpuCount: 1 } });
      const { resizing } = sandbox;
      assert.ok(resizing);
      const ticking = await startTicking(context, sandbox);
      for (const [memoryMiB, cpuCount] of [
        [512, 2],
        [256, 1],
      ] as const) {
        await resizing.resize({ memoryMiB, cpuCount });
        const stats = await sandbox.stats();
        assert.equal(stats.memoryTotalBytes, memoryMiB * 2 ** 20);
        assert.equal(stats.cpuCount, cpuCount);
      }
      await ticking.until(ticking.ticks + 2);
      assert.ok(ticking.isGapless, "the sandbox did not go on");
      await ticking.kill();
    },
  },
];

function pausingOf(sandbox: Sandbox): NonNullable<Sandbox["pausing"]> {
  const { pausing } = sandbox;
  assert.ok(pausing, "the sandbox has no pausing");
  return pausing;
}
