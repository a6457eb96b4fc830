import assert from "node:assert/strict";
import { mkdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { chmod, mkdir, mkdtemp, rename, rm, unlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, beforeEach, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { SandboxError } from "@coppice/core";
import type { WatchEvent } from "@coppice/core/backend";
import { eventually } from "@coppice/core/testing";
import type { AgentConnection } from "./agent-connection.js";
import { startHostAgent } from "./start-host-agent.js";
import { withoutBinary } from "./testing/agent-kinds.js";
import { startListeningAgent } from "./testing/listening-agent.js";
import { mount, withoutMounts } from "./testing/mount.js";
import { shell } from "./testing/run.js";

async function* body(text: string): AsyncGenerator<Uint8Array> {
  yield Buffer.from(text);
}

function busyFor(milliseconds: number): void {
  const end = performance.now() + milliseconds;
  while (performance.now() < end);
}

describe("a watch", { skip: withoutBinary }, () => {
  let agent: AgentConnection;
  let root: string;
  let stopping: AbortController;

  before(async () => {
    agent = await startHostAgent({
      defaultUser: { uid: process.getuid?.() ?? 0, gid: process.getgid?.() ?? 0 },
    });
  });

  after(() => agent.close());

  beforeEach(async () => {
    root = await mkdtemp(join(tmpdir(), "coppice-watch-"));
    stopping = new AbortController();
  });

  afterEach(async () => {
    stopping.abort();
    await rm(root, { recursive: true, force: true });
  });

  /** Records further events as `type name`. */
  async function watch(recursive: boolean): Promise<{ seen: string[]; ended: Promise<unknown> }> {
    const seen: string[] = [];
    const source = await agent.files.watch(root, { recursive, signal: stopping.signal });
    const ended = (async (events: AsyncIterable<WatchEvent>) => {
      for await (const { type, name } of events) seen.push(`${type} ${name}`);
    })(source).catch((error: unknown) => error);
    return { seen, ended };
  }

  it("can be stopped during changes, and delivers no event after that", async () => {
    const script = 'cd "$1" && while :; do : > a; rm a; done';
    const args = ["-c", script, "sh", root];
    const busy = await agent.spawn({ path: "sh", args, env: { PATH: process.env["PATH"] ?? "" }, cwd: "/" });
    for (let round = 0; round < 200; round++) {
      const leaving = new AbortController();
      const source = await agent.files.watch(root, { recursive: false, signal: leaving.signal });
      const seen = (async () => {
        for await (const _ of source) leaving.abort();
      })();
      await seen;
    }
    assert.equal((await agent.files.stat(root)).kind, "directory");
    await busy.kill("SIGKILL", "group");
  });

  it("sends what it finds without another reason to wake up", async () => {
    const outside = await mkdtemp(join(tmpdir(), "coppice-watch-"));
    const parent = await shell(agent, "echo $PPID");
    const pid = Number(parent.stdout);
    const { seen } = await watch(true);
    for (let round = 0; round < 300; round++) {
      const [from, to] = [join(outside, `d${round}`), join(root, `d${round}`)];
      mkdirSync(from);
      for (let file = 0; file < 50; file++) writeFileSync(join(from, `f${file}`), "");
      renameSync(from, to);
      // While the agent reads the directory, another change comes; and one more just after that was read.
      writeFileSync(join(to, "first"), "");
      busyFor((round % 60) * 0.01);
      process.kill(pid, "SIGSTOP");
      writeFileSync(join(to, "last"), "");
      process.kill(pid, "SIGCONT");
      await eventually(`round ${round}`, () => seen.includes(`create d${round}/last`));
      rmSync(to, { recursive: true });
      seen.length = 0;
    }
    await rm(outside, { recursive: true });
  });

  it("reports changes in a directory, in order, and none of its subdirectories", async () => {
    await mkdir(join(root, "sub"));
    const { seen, ended } = await watch(false);
    await agent.files.write(join(root, "a"), body("small"));
    await rename(join(root, "a"), join(root, "b"));
    await eventually("the new name is seen", () => seen.includes("create b"));
    await chmod(join(root, "b"), 0o600);
    await eventually("the mode is seen", () => seen.includes("chmod b"));
    await unlink(join(root, "b"));
    await eventually("the end is seen", () => seen.includes("remove b"));
    await writeFile(join(root, "sub/below"), "");
    await writeFile(join(root, "last"), "");
    await eventually("the last is seen", () => seen.includes("create last"));
    assert.deepEqual(
      // Only inotify, not kqueue, reports changes of a file before it is first seen.
      seen.filter((event) => event !== "chmod a"),
      ["create a", "write a", "rename a", "create b", "chmod b", "remove b", "create last"],
    );
    stopping.abort();
    assert.equal(await ended, undefined);
  });

  it("reports a large write as one creation or one replacement, without temporary names", async () => {
    const { seen } = await watch(true);
    await agent.files.write(join(root, "large"), body("x".repeat(500_000)));
    await agent.files.write(join(root, "large"), body("y".repeat(500_000)));
    await writeFile(join(root, "last"), "");
    await eventually("the last is seen", () => seen.includes("create last"));
    assert.ok(!seen.some((event) => event.includes(".coppice")), seen.join(", "));
    assert.equal(seen.filter((event) => event === "create large").length, 2);
  });

  it("reports everything in new directories exactly once", async () => {
    const { seen } = await watch(true);
    const wanted: string[] = [];
    for (let index = 0; index < 20; index++) {
      const script = `mkdir -p n${index}/a/b && : > n${index}/x && : > n${index}/a/y && : > n${index}/a/b/z`;
      await shell(agent, script, { cwd: root });
      wanted.push(...["", "/a", "/a/b", "/x", "/a/y", "/a/b/z"].map((path) => `create n${index}${path}`));
    }
    await eventually("all are seen", () => wanted.every((event) => seen.includes(event)));
    const created = seen.filter((event) => event.startsWith("create "));
    assert.deepEqual(created.toSorted(), wanted.toSorted());
  });

  it("follows renamed directories, and drops those that leave", async () => {
    const elsewhere = await mkdtemp(join(tmpdir(), "coppice-elsewhere-"));
    await mkdir(join(root, "one/below"), { recursive: true });
    const { seen } = await watch(true);
    await rename(join(root, "one"), join(root, "two"));
    await eventually("the new name is seen", () => seen.includes("create two"));
    await writeFile(join(root, "two/below/file"), "");
    await eventually("the file is seen", () => seen.includes("create two/below/file"));
    await rename(join(root, "two"), join(elsewhere, "gone"));
    await eventually("it left", () => seen.includes("rename two"));
    await writeFile(join(elsewhere, "gone/unseen"), "");
    await rename(join(elsewhere, "gone"), join(root, "back"));
    await eventually("what came is seen", () => seen.includes("create back/unseen"));
    assert.ok(!seen.includes("create two/unseen"));
    await rm(elsewhere, { recursive: true, force: true });
  });

  it("can be one of several on the same directory, and ends alone", async () => {
    const first = await watch(true);
    const one = stopping;
    stopping = new AbortController();
    const second = await watch(false);
    await writeFile(join(root, "a"), "");
    await eventually(
      "both see it",
      () => first.seen.includes("create a") && second.seen.includes("create a"),
    );
    one.abort();
    await first.ended;
    await writeFile(join(root, "b"), "");
    await eventually("the other goes on", () => second.seen.includes("create b"));
    assert.ok(!first.seen.includes("create b"));
  });

  it("is refused where there is no directory", async () => {
    for (const [path, code] of [
      ["/no/such", "not_found"],
      ["/etc/passwd", "invalid_argument"],
    ] as const) {
      const refused = await agent.files.watch(path, { recursive: false, signal: stopping.signal }).then(
        () => undefined,
        (error: unknown) => error,
      );
      assert.ok(refused instanceof SandboxError);
      assert.equal(refused.code, code);
    }
  });

  it("is refused on a network file system, unless allowed", { skip: withoutMounts }, async () => {
    await using _ = await mount("fuse", root);
    const { signal } = stopping;
    const refused = { code: "invalid_argument", message: `cannot watch path on network filesystem: ${root}` };
    for (const recursive of [false, true]) {
      await assert.rejects(agent.files.watch(root, { recursive, signal }), refused);
      await agent.files.watch(root, { recursive, allowNetworkMounts: true, signal });
    }
    // If the sandbox's root is on it, only the sandbox changes it.
    await using listening = await startListeningAgent([], ["--root", root]);
    const confined = await listening.connect();
    await confined.files.watch("/", { recursive: true, signal });
    await confined.close();
  });

  it("ends with an error when events were lost, after the earlier ones", async () => {
    const source = await agent.files.watch(root, { recursive: false, signal: stopping.signal });
    const long = "x".repeat(200);
    const script = `import os\nfor i in range(12000):\n  open('${long}' + str(i), 'w').close()\n`;
    await shell(agent, `python3 -c "$SCRIPT"`, { cwd: root, env: { PATH: "/usr/bin:/bin", SCRIPT: script } });
    await sleep(50);
    let count = 0;
    const error = await (async () => {
      for await (const _ of source) count++;
      return undefined;
    })().catch((thrown: unknown) => thrown);
    assert.ok(error instanceof SandboxError, "it ended without a word");
    assert.ok(count > 1_000, `only ${count} were seen`);
  });
});
