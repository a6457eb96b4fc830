import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import type { Exit } from "@coppice/core/backend";
import { eventually } from "@coppice/core/testing";
import { AgentConnection } from "./agent-connection.js";
import { withoutBinary, withoutRoot } from "./testing/agent-kinds.js";
import { isRunning } from "./testing/is-running.js";
import { startListeningAgent } from "./testing/listening-agent.js";
import { openDescriptors } from "./testing/open-descriptors.js";
import { env, finish, run, shell } from "./testing/run.js";
import { frameHeader, MAGIC, PayloadWriter, Request, VERSION } from "./wire/frames.js";

/** Direct children, in the order of their pids. */
async function childrenOf(pid: number): Promise<readonly number[]> {
  const { stdout } = await promisify(execFile)("ps", ["-A", "-o", "pid=,ppid="]);
  const pairs = stdout
    .trim()
    .split("\n")
    .map((line) => line.trim().split(/ +/).map(Number));
  return pairs
    .flatMap(([child = 0, parent]) => (parent === pid ? [child] : []))
    .sort((one, other) => one - other);
}

describe("an agent that listens", { skip: withoutBinary }, () => {
  it("ends when a limit takes its descriptors away, instead of waiting forever", async () => {
    await using agent = await startListeningAgent();
    const connection = await agent.connect();
    const sleep = { path: "sleep", args: ["100"], env, cwd: "/" };
    const started = await Promise.all([1, 2, 3].map(() => connection.spawn(sleep)));
    await promisify(execFile)("prlimit", ["--pid", String(agent.child.pid), "--nofile=1:1"]);
    await assert.rejects(connection.files.stat("/"));
    await connection.closed;
    for (const { pid } of started) process.kill(pid, "SIGKILL");
  });

  it("greets the next server after a client of another protocol", async () => {
    await using agent = await startListeningAgent();
    const stranger = await agent.socket();
    stranger.on("error", () => undefined);
    const greeting = new PayloadWriter()
      .u32(MAGIC)
      .u16(VERSION + 1)
      .finish();
    stranger.resume().write(Buffer.concat([frameHeader(Request.Hello, 0, greeting.byteLength), greeting]));
    await once(stranger, "close");
    const connection = await agent.connect();
    assert.deepEqual(await connection.processes(), []);
    await connection.close();
  });

  it("names every process to the next server whose start the last one did not see", async () => {
    await using agent = await startListeningAgent();
    for (let round = 0; round < 10; round += 1) {
      const first = await agent.connect();
      const spawn = (number: number) =>
        first.spawn({ path: "sleep", args: ["300"], env, cwd: "/", label: `${round} ${number}` });
      const starts = Array.from({ length: 30 }, (_, number) => spawn(number).catch(() => undefined));
      // Some are still to come.
      await starts[round];
      await first.close();
      const second = await agent.connect();
      const found = await second.processes();
      const children = await childrenOf(agent.child.pid ?? 0);
      assert.deepEqual(
        found.map(({ pid }) => pid).sort((one, other) => one - other),
        children,
      );
      assert.equal(new Set(found.map(({ label }) => label)).size, found.length);
      for (const process of found) await process.kill("SIGKILL");
      for (const process of found) assert.deepEqual((await finish(process)).exit, { signal: "SIGKILL" });
      await second.close();
    }
  });

  it("keeps processes, their output and their exit for the next server", async () => {
    await using agent = await startListeningAgent();
    const first = await agent.connect();
    const ended = await first.spawn({
      path: "sh",
      args: ["-c", "sleep 0.1; echo out; exit 43"],
      env,
      cwd: "/",
      label: "one",
    });
    const script = "read line; echo got $line; exit 7";
    const waiting = await first.spawn({ path: "sh", args: ["-c", script], env, cwd: "/", label: "two" });
    const busy = await first.spawn({
      path: "sh",
      args: ["-c", "sleep 0.1; head -c 1000000 /dev/zero"],
      env,
      cwd: "/",
    });
    await first.close();
    await sleep(200);
    assert.ok(isRunning(waiting.pid));
    assert.ok(isRunning(busy.pid), "without a reader it blocks");

    await using second = Object.assign(await agent.connect(), {
      [Symbol.asyncDispose]: () => second.close(),
    });
    const found = await second.processes();
    assert.deepEqual(
      found.map(({ pid, label }) => [pid, label]),
      [
        [ended.pid, "one"],
        [waiting.pid, "two"],
        [busy.pid, ""],
      ],
    );
    const [one, two, three] = found;
    assert.ok(one && two && three);
    assert.deepEqual(await one.exit, { code: 43 });
    assert.equal((await finish(one)).stdout.toString(), "out\n");
    await two.write(Buffer.from("this\n"));
    const answer = await finish(two);
    assert.equal(answer.stdout.toString(), "got this\n");
    assert.deepEqual(answer.exit, { code: 7 });
    assert.equal((await finish(three)).stdout.byteLength, 1_000_000);
    await second.close();
    const third = await agent.connect();
    assert.deepEqual(await third.processes(), [], "fully read processes are forgotten");
    await third.close();
  });

  it("forgets only acknowledged ends, and prefers the newer of two servers", async () => {
    await using agent = await startListeningAgent();
    const first = await agent.connect();
    const started = await first.spawn({ path: "sleep", args: ["300"], env, cwd: "/", label: "kept" });
    const second = await agent.connect();
    await first.closed;
    assert.equal((await second.processes())[0]?.pid, started.pid);
    assert.deepEqual((await run(second, "true")).exit, { code: 0 });
    await second.close();
    const third = await agent.connect();
    const [kept] = await third.processes();
    assert.ok(kept);
    await kept.kill("SIGTERM");
    assert.deepEqual(await kept.exit, { signal: "SIGTERM" });
    await third.close();
  });

  it("reports the ends of fifty commands to the next server, when one dies meanwhile", async () => {
    await using agent = await startListeningAgent();
    const socket = await agent.socket();
    const first = await AgentConnection.open(socket);
    const numbers = Array.from({ length: 50 }, (_, index) => index);
    const seen = new Map<number, Exit>();
    await Promise.all(
      numbers.map(async (number) => {
        const started = await first.spawn({
          path: "sh",
          args: ["-c", `sleep 0.${number % 4}; echo ${number}; exit ${number}`],
          env,
          cwd: "/",
          label: String(number),
        });
        void started.exit.then((exit) => seen.set(number, exit));
      }),
    );
    await sleep(50);
    socket.destroy();
    await first.closed;
    await sleep(150);
    const second = await agent.connect();
    const found = await second.processes();
    for (const each of found) {
      const { exit } = await finish(each);
      seen.set(Number(each.label), exit);
    }
    assert.ok(found.length > 0, "all had ended already");
    for (const number of numbers) assert.deepEqual(seen.get(number), { code: number });
    await second.close();
    const third = await agent.connect();
    assert.deepEqual(await third.processes(), []);
    await third.close();
  });

  it("goes on after malformed bytes", async () => {
    await using agent = await startListeningAgent();
    const steady = await agent.connect();
    const started = await steady.spawn({ path: "sleep", args: ["300"], env, cwd: "/" });
    await steady.close();
    const greeting = Buffer.from("0b00000001000000004 34f50500100".replace(" ", ""), "hex");
    const garbage = [
      Buffer.alloc(100_000, 0xff),
      Buffer.alloc(100_000),
      Buffer.concat([greeting, Buffer.from("05000000ff01000000", "hex")]),
      Buffer.concat([greeting, Buffer.from("0600000003010000007f", "hex")]),
      Buffer.concat([greeting, greeting]),
      Buffer.concat([greeting, Buffer.from("ffffff7f", "hex")]),
    ];
    for (const bytes of garbage) {
      const socket = await agent.socket();
      socket.on("error", () => undefined);
      socket.write(bytes);
      await text(socket).catch(() => undefined);
    }
    const after = await agent.connect();
    const [found] = await after.processes();
    assert.equal(found?.pid, started.pid);
    await found?.kill("SIGKILL");
    await after.close();
  });

  it("leaks no descriptor when servers come and go", { skip: withoutRoot }, async () => {
    await using agent = await startListeningAgent();
    const descriptors = (): number => openDescriptors(agent.child.pid ?? 0);
    await (await agent.connect()).close();
    await eventually("the agent is alone", () => descriptors() === 5);
    const before = descriptors();
    for (let round = 0; round < 20; round++) {
      const server = await agent.connect();
      const watch = await server.files.watch("/tmp", {
        recursive: false,
        signal: new AbortController().signal,
      });
      assert.ok(watch);
      await server.files.read("/etc/passwd");
      await run(server, "true");
      await server.close();
    }
    await eventually("descriptors are as before", () => descriptors() === before);
  });

  it(
    "reaps orphans as the first process of a namespace, and survives its children",
    { skip: withoutRoot || (process.platform !== "linux" && "needs namespaces of Linux") },
    async () => {
      const unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
      await using agent = await startListeningAgent(unshare);
      const server = await agent.connect();
      const orphans = "for i in 1 2 3 4 5; do (setsid sh -c 'sleep 0.05; exit 3' &) ; done; echo $$";
      await shell(server, orphans);
      await eventually("no zombie is left", async () => {
        const { stdout } = await shell(server, "ps -e -o stat= | grep -c ^Z || true");
        return stdout.toString() === "0\n";
      });
      const { stdout } = await shell(server, "kill -TERM 1; kill -KILL 1; kill -SEGV 1; echo alive");
      assert.equal(stdout.toString(), "alive\n");
      const look = "readlink /proc/1/exe || ls /proc/1/fd || echo hidden";
      assert.equal((await shell(server, look, { user: "nobody" })).stdout.toString(), "hidden\n");
      assert.deepEqual((await run(server, "true")).exit, { code: 0 });
      await server.close();
    },
  );

  it(
    "looks accounts up in its own root, and gives programs limits and a umask",
    { skip: withoutRoot },
    async () => {
      const root = await mkdtemp(join(tmpdir(), "coppice-root-"));
      try {
        await mkdir(join(root, "etc"));
        const accounts = [
          "no line",
          "::::::",
          "root:x:0:0::/root:/bin/sh",
          "agent:x:4321:1234:A B,,:/:/bin/false",
          "long:x:99999999999:1::/:/",
        ];
        await writeFile(join(root, "etc/passwd"), accounts.join("\n"));
        await writeFile(
          join(root, "etc/group"),
          "one:x:77:other,agent\ntwo:x:78:agents\nthree:x:79:agent\nagent:x:1234:agent\n",
        );
        await using agent = await startListeningAgent([], ["--root", root]);
        const server = await agent.connect({ defaultUser: "agent" });
        assert.deepEqual(await server.user(), {
          name: "agent",
          uid: 4321,
          gid: 1234,
          home: "/",
          shell: "/bin/false",
        });
        await assert.rejects(server.user("long"), /unknown user long/);
        await assert.rejects(server.user("daemon"), /unknown user daemon/);
        const { stdout } = await shell(server, "id -u; id -g; id -G; umask; ulimit -n; ulimit -f", {
          umask: 0o027,
          limits: { openFiles: 99, fileSizeBytes: 512_000 },
        });
        assert.equal(stdout.toString(), "4321\n1234\n1234 77 79\n0027\n99\n1000\n");
        await writeFile(join(root, "etc/passwd"), "agent:x:4322:1234::/:/bin/false\n");
        assert.equal((await shell(server, "id -u")).stdout.toString(), "4322\n", "a change is seen at once");
        await server.close();
      } finally {
        await rm(root, { recursive: true, force: true });
      }
    },
  );

  it("reports why a program could not enter a jail, and starts only programs through another", async () => {
    const through = (script: string) => startListeningAgent([], [], ["/bin/sh", "-c", script]);
    await using closed = await through("echo no way in >&2; exit 1");
    const connection = await closed.connect();
    await assert.rejects(run(connection, "true"), { code: "unavailable", message: /: no way in$/ });
    await assert.rejects(connection.files.stat("/etc"));
    await assert.rejects(connection.user("root"));
    await connection.close();
    await using deadly = await through("kill -9 $$");
    const other = await deadly.connect();
    assert.deepEqual((await run(other, "true")).exit, { signal: "SIGKILL" });
    await other.close();
  });

  it("ends with everything it started on request", async () => {
    await using agent = await startListeningAgent();
    const connection = await agent.connect();
    const escape = 'setsid sh -c "echo \\$\\$; exec sleep 300" & wait';
    const started = await connection.spawn({ path: "sh", args: ["-c", escape], env, cwd: "/" });
    const { value } = await started.output[Symbol.asyncIterator]().next();
    const escaped = Number(Buffer.from(value?.data ?? []).toString());
    await connection.end();
    assert.deepEqual(await started.exit, { signal: "SIGKILL", isAssumed: true });
    await eventually("nothing of it runs", () => !isRunning(escaped) && !isRunning(started.pid));
  });
});
