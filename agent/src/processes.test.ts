import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { chmod, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { SandboxError } from "@coppice/core";
import { eventually } from "@coppice/core/testing";
import type { AgentConnection } from "./agent-connection.js";
import { startHostAgent } from "./start-host-agent.js";
import { agentKinds, withoutRoot } from "./testing/agent-kinds.js";
import { isRunning } from "./testing/is-running.js";
import { openDescriptors } from "./testing/open-descriptors.js";
import { env, finish, run, shell } from "./testing/run.js";

const MEBIBYTE = 2 ** 20;

function refuses(promise: Promise<unknown>, code: string, message?: RegExp): Promise<void> {
  return assert.rejects(promise, (error) => {
    assert.ok(error instanceof SandboxError, String(error));
    assert.equal(error.code, code, error.message);
    if (message) assert.match(error.message, message);
    return true;
  });
}

for (const { name, binary, skip } of agentKinds) {
  describe(`processes of ${name}`, { skip }, () => {
    let agent: AgentConnection;

    before(async () => {
      agent = await startHostAgent({ binary });
    });

    after(() => agent.close());

    it("report exactly their bytes, exit code and pid", async () => {
      const started = await agent.spawn({
        path: "sh",
        args: ["-c", "printf 'a\\000\\377'; echo $$ >&2; exit 43"],
        env,
        cwd: "/",
      });
      const { exit, stdout, stderr } = await finish(started);
      assert.deepEqual(stdout, Buffer.from([0x61, 0, 0xff]));
      assert.equal(stderr.toString(), `${started.pid}\n`);
      assert.deepEqual(exit, { code: 43 });
    });

    it("get exactly the given arguments and variables", async () => {
      const args = ["", "two words", "$HOME `id`", "a'b\"c\\", "line\nbreak", "ünï ✓"];
      const seen = await run(agent, "printf", ["%s\\0", ...args]);
      assert.deepEqual(seen.stdout.toString().split("\0").slice(0, -1), args);
      const odd = { A: "x=y", B: "", C: "ünï\n✓" };
      const listed = await run(agent, "/usr/bin/env", ["-0"], { env: odd });
      assert.equal(listed.stdout.toString(), "A=x=y\0B=\0C=ünï\n✓\0");
      await refuses(run(agent, "true", ["a\0b"]), "invalid_argument");
      await refuses(run(agent, "true", ["x".repeat(300_000)]), "invalid_argument", /argument list too long/);
      await refuses(run(agent, "true", ["x".repeat(200_000)]), "invalid_argument", /argument list too long/);
      assert.equal(
        (await shell(agent, 'printf "${#X}"', { env: { X: "x".repeat(100_000) } })).stdout.toString(),
        "100000",
      );
    });

    it("start in the given directory, and not in a missing one", async () => {
      assert.equal((await run(agent, "pwd", [], { cwd: "/usr/share" })).stdout.toString(), "/usr/share\n");
      for (const cwd of ["/no/such", "/etc/passwd"]) {
        await refuses(
          run(agent, "true", [], { cwd }),
          "invalid_argument",
          new RegExp(`^cwd '${cwd}' does not exist$`),
        );
      }
    });

    it("that cannot be run end with 127 or 126, with a reason on stderr", async () => {
      for (const path of ["no-such-program", "/no/such/program", ""]) {
        const { exit, stderr } = await run(agent, path);
        assert.deepEqual(exit, { code: path === "" && binary === "node" ? 126 : 127 });
        assert.notEqual(stderr.byteLength, 0);
      }
      for (const path of ["/etc/passwd", "/etc"]) {
        assert.deepEqual((await run(agent, path)).exit, { code: 126 });
      }
    });

    it("are refused for a user that does not exist", async () => {
      await refuses(
        run(agent, "true", [], { user: "nobody-of-that-name" }),
        "unauthenticated",
        /invalid username/,
      );
    });

    it("run as the given user", { skip: process.getuid?.() !== 0 && "needs root" }, async () => {
      const { stdout } = await shell(agent, "id -u; id -g; cat /etc/shadow || echo refused", {
        user: "nobody",
      });
      assert.match(stdout.toString(), /^65534\n65534\nrefused\n$/);
      const numbers = await shell(agent, "id -u; id -g", { user: { uid: 12_345, gid: 23_456 } });
      assert.equal(numbers.stdout.toString(), "12345\n23456\n");
    });

    it("take input and its end, and refuse later input", async () => {
      const blob = randomBytes(MEBIBYTE);
      const cat = await agent.spawn({ path: "cat", args: [], env, cwd: "/" });
      const finished = finish(cat);
      await cat.write(new Uint8Array());
      for (let start = 0; start < blob.byteLength; start += 100_000)
        await cat.write(blob.subarray(start, start + 100_000));
      await cat.closeInput();
      await cat.closeInput();
      assert.ok((await finished).stdout.equals(blob), "the bytes differ");
      await refuses(cat.write(Buffer.from("late")), "failed_precondition");
      const none = await agent.spawn({ path: "cat", args: [], env, cwd: "/", input: "none" });
      await refuses(none.write(Buffer.from("x")), "failed_precondition");
      assert.deepEqual((await finish(none)).exit, { code: 0 });
    });

    it("that read slowly slow the writer, which is released when they end", async () => {
      const reader = await agent.spawn({ path: "sleep", args: ["300"], env, cwd: "/" });
      const writing = reader.write(Buffer.alloc(4 * MEBIBYTE));
      assert.equal(await Promise.race([writing.then(() => "written"), sleep(100, "waiting")]), "waiting");
      await reader.kill("SIGKILL");
      await refuses(writing, "failed_precondition");
    });

    it("write a hundred megabytes that arrive unchanged", async () => {
      const script = "head -c 100000000 /dev/zero | tr '\\0' x";
      const started = await agent.spawn({ path: "sh", args: ["-c", script], env, cwd: "/", input: "none" });
      const hash = createHash("sha256");
      let length = 0;
      for await (const { data } of started.output) {
        hash.update(data);
        length += data.byteLength;
      }
      assert.equal(length, 100_000_000);
      const expected = createHash("sha256");
      for (let left = 100; left > 0; left--) expected.update(Buffer.alloc(1_000_000, "x"));
      assert.equal(hash.digest("hex"), expected.digest("hex"));
    });

    it("wait for a slow reader, without buffering on its side", async () => {
      const script = "i=0; while [ $i -lt 400 ]; do printf '%065536d' 0; i=$((i + 1)); printf . >&2; done";
      const writer = await agent.spawn({ path: "sh", args: ["-c", `${script} 2> /dev/null`], env, cwd: "/" });
      const output = writer.output[Symbol.asyncIterator]();
      let length = (await output.next()).value?.data.byteLength ?? 0;
      const before = process.memoryUsage().arrayBuffers;
      await sleep(300);
      assert.ok(isRunning(writer.pid), "it wrote 26 MB that were not read");
      assert.ok(process.memoryUsage().arrayBuffers - before < 4 * MEBIBYTE, "its output piled up");
      for (let next = await output.next(); !next.done; next = await output.next())
        length += next.value.data.byteLength;
      assert.equal(length, 25 * MEBIBYTE);
      assert.deepEqual(await writer.exit, { code: 0 });
    });

    it("end, with or without a reader", async () => {
      const quiet = await agent.spawn({ path: "sh", args: ["-c", "echo unread; exit 5"], env, cwd: "/" });
      assert.deepEqual(await quiet.exit, { code: 5 });
      const left = await agent.spawn({ path: "head", args: ["-c", "10000000", "/dev/zero"], env, cwd: "/" });
      for await (const _ of left.output) break;
      assert.deepEqual(await left.exit, { code: 0 });
    });

    it("can be signalled alone or with their group", async () => {
      for (const signal of ["SIGTERM", "SIGKILL", "SIGUSR1"] as const) {
        const sleeping = await agent.spawn({ path: "sleep", args: ["300"], env, cwd: "/" });
        await sleeping.kill(signal);
        assert.equal((await sleeping.exit).signal, signal);
        await refuses(sleeping.kill("SIGKILL"), "not_found");
      }
      const family = async (): Promise<[Awaited<ReturnType<AgentConnection["spawn"]>>, number]> => {
        const script = "sleep 300 > /dev/null 2>&1 & echo $!; wait";
        const parent = await agent.spawn({ path: "sh", args: ["-c", script], env, cwd: "/" });
        const { value } = await parent.output[Symbol.asyncIterator]().next();
        return [parent, Number(Buffer.from(value?.data ?? []).toString())];
      };
      const [alone, survivor] = await family();
      await alone.kill("SIGKILL");
      await alone.exit;
      assert.ok(isRunning(survivor), "the child died, too");
      process.kill(survivor, "SIGKILL");
      const [leader, follower] = await family();
      await leader.kill("SIGKILL", "group");
      await leader.exit;
      await eventually("the child is gone", () => !isRunning(follower));
      const trapping = await agent.spawn({
        path: "sh",
        args: ["-c", "trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.02; done"],
        env,
        cwd: "/",
      });
      const output = trapping.output[Symbol.asyncIterator]();
      await output.next();
      await trapping.kill("SIGTERM");
      assert.deepEqual(await trapping.exit, { code: 7 });
    });

    it("lose no output when they are killed, even if a child holds it open", async () => {
      const script = "echo before; sleep 300 & wait";
      const started = await agent.spawn({ path: "sh", args: ["-c", script], env, cwd: "/" });
      const output = started.output[Symbol.asyncIterator]();
      await sleep(100);
      await started.kill("SIGKILL");
      const rest = await Array.fromAsync({ [Symbol.asyncIterator]: () => output });
      const stdout = Buffer.concat(rest.map(({ data }) => data));
      assert.equal(stdout.toString(), "before\n");
      process.kill(-started.pid, "SIGKILL");
    });

    it("are reported as ended, even if a child still writes", async () => {
      const script = "(sleep 0.3; echo late) & echo early; exit 43";
      const started = await agent.spawn({ path: "sh", args: ["-c", script], env, cwd: "/" });
      const finished = finish(started);
      assert.deepEqual(await started.exit, { code: 43 });
      assert.equal((await finished).stdout.toString(), "early\nlate\n");
    });

    it("can open stdin, stdout and stderr by name", async () => {
      const script = "cat /dev/stdin > /dev/stdout; echo err > /dev/stderr";
      const started = await agent.spawn({ path: "sh", args: ["-c", script], env, cwd: "/" });
      const output = started.output[Symbol.asyncIterator]();
      await started.write(Buffer.from("through\n"));
      assert.equal(Buffer.from((await output.next()).value?.data ?? []).toString(), "through\n");
      await started.closeInput();
      assert.deepEqual((await output.next()).value, { stream: "stderr", data: Buffer.from("err\n") });
      assert.deepEqual(await started.exit, { code: 0 });
    });

    it("cannot be resized without a terminal", async () => {
      const plain = await agent.spawn({ path: "sleep", args: ["300"], env, cwd: "/" });
      await refuses(plain.resize({ columns: 80, rows: 24 }), "failed_precondition");
      await plain.kill("SIGKILL");
      await plain.exit;
    });

    it("do not mix, fifty at once", async () => {
      const numbers = Array.from({ length: 50 }, (_, index) => index);
      const all = await Promise.all(numbers.map((number) => shell(agent, `echo ${number}; exit ${number}`)));
      assert.deepEqual(
        all.map(({ exit, stdout }) => [exit.code, stdout.toString()]),
        numbers.map((number) => [number, `${number}\n`]),
      );
    });

    it("that start together each get what is theirs, and what fails among them fails alone", async () => {
      const directory = await mkdtemp(join(tmpdir(), "coppice-starts-"));
      // Without `#!`: the shell runs it.
      const script = join(directory, "script");
      await writeFile(script, "echo $1 $2 $X $(pwd)\n", { mode: 0o755 });
      await chmod(directory, 0o755);
      const starts = Array.from({ length: 200 }, async (_, number) => {
        const kind = number % 4;
        if (kind === 0) return refuses(run(agent, "true", [], { cwd: `/no/${number}` }), "invalid_argument");
        if (kind === 1) return assert.deepEqual((await run(agent, `no-such-${number}`)).exit, { code: 127 });
        const seen = await run(agent, kind === 2 ? "script" : script, [`${number}`, "word"], {
          cwd: directory,
          env: { PATH: `/no/such:${directory}`, X: `x${number}` },
        });
        assert.equal(seen.stdout.toString(), `${number} word x${number} ${directory}\n`);
      });
      await Promise.all(starts);
      await rm(directory, { recursive: true });
    });

    it(
      "that start together run as their own users, while files are used as others",
      { skip: name !== "the binary" ? "needs files" : process.getuid?.() !== 0 && "needs root" },
      async () => {
        const own = await startHostAgent({ binary, fileActor: "nobody" });
        const all = Array.from({ length: 150 }, async (_, number) => {
          const looking = own.files.stat("/etc/passwd");
          const uid = number % 3 === 0 ? 0 : 10_000 + number;
          const { stdout } = await shell(own, "id -u; id -g; id -G", { user: { uid, gid: uid } });
          assert.equal(stdout.toString(), `${uid}\n${uid}\n${uid}\n`);
          await looking;
        });
        try {
          await Promise.all(all);
        } finally {
          await own.close();
        }
      },
    );

    // Only root can see the open descriptors of the binary.
    it("leave no descriptor and no zombie behind", { skip: binary !== "node" && withoutRoot }, async () => {
      const { stdout } = await shell(agent, "ps -o ppid= -p $$");
      const pid = Number(stdout.toString());
      const descriptors = (): number => openDescriptors(pid);
      await run(agent, "true");
      const before = descriptors();
      for (let round = 0; round < 20; round++) {
        await Promise.all([
          run(agent, "true"),
          run(agent, "no-such"),
          run(agent, "true", [], { cwd: "/no" }).catch(() => {}),
        ]);
      }
      await eventually("descriptors are as before", () => descriptors() <= before);
      const all = await shell(agent, "ps -A -o ppid= -o stat= -o comm=");
      assert.doesNotMatch(all.stdout.toString(), new RegExp(`^ *${pid} +Z`, "m"));
    });

    it("all end with the connection, whatever their group or session", async () => {
      const own = await startHostAgent({ binary });
      const pids: number[] = [];
      const escape = binary === "node" ? "" : "setsid ";
      for (let count = 0; count < 3; count++) {
        const script = `${escape}sleep 300 > /dev/null 2>&1 & echo $!; wait`;
        const started = await own.spawn({ path: "sh", args: ["-c", script], env, cwd: "/" });
        const { value } = await started.output[Symbol.asyncIterator]().next();
        pids.push(started.pid, Number(Buffer.from(value?.data ?? []).toString()));
      }
      await own.close();
      for (const pid of pids) await eventually(`process ${pid} is gone`, () => !isRunning(pid));
      await refuses(own.spawn({ path: "true", args: [], env, cwd: "/" }), "canceled");
    });

    it("end at once with a connection that is closed while they are announced", async () => {
      for (let round = 0; round < 20; round++) {
        const own = await startHostAgent({ binary });
        const started = await own.spawn({ path: "true", args: [], env, cwd: "/" });
        await started.exit;
        const startMs = performance.now();
        await own.close();
        const tookMs = performance.now() - startMs;
        assert.ok(tookMs < 3_000, `the agent had to be killed after ${tookMs} ms`);
      }
    });

    it("are reported as killed when the agent dies", async () => {
      const own = await startHostAgent({ binary });
      const { stdout } = await shell(own, "ps -o ppid= -p $$");
      const started = await own.spawn({ path: "sleep", args: ["300"], env, cwd: "/" });
      process.kill(Number(stdout.toString()), "SIGKILL");
      assert.deepEqual(await started.exit, { signal: "SIGKILL", isAssumed: true });
      await own.closed;
      await refuses(own.spawn({ path: "true", args: [], env, cwd: "/" }), "unavailable");
      process.kill(started.pid, "SIGKILL");
      await own.close();
      // The next one removes the remains of the killed one.
      await (await startHostAgent({ binary })).close();
    });
  });
}
