import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { before, it } from "node:test";
import type { Process, Sandbox } from "@cloudflare/sandbox";
import { cloudflare, openCloudflareSandbox } from "../../harness/clients/cloudflare-client.js";
import { API_KEY } from "../../harness/server/api-key.js";
import { onEachBackend } from "../../harness/server/on-each-backend.js";

/** Streams of the project's goal: COPPICE_ROUNDS=10000. */
const STREAMS = Number(process.env["COPPICE_ROUNDS"] ?? 100);
const AT_ONCE = 16;
const withoutGit = existsSync("/usr/bin/git") ? false : "it needs git";

type Level = "the class Sandbox" | "SandboxClient alone";

onEachBackend(
  "shell sessions through the unmodified @cloudflare/sandbox",
  ({ sandbox, server }) => {
    let cloud: Sandbox;
    let client: InstanceType<typeof cloudflare.SandboxClient>;

    before(async () => {
      const { sandboxId } = sandbox();
      await sandbox().setTimeout(3_600_000);
      const url = `${server().url}/sandboxes/${sandboxId}/shell`;
      const token = server().sandboxes.find(sandboxId)?.record.accessToken ?? "";
      assert.notEqual(token, "", "the sandbox is guarded");
      cloud = await openCloudflareSandbox({ url, headers: { "x-access-token": token } });
      // This class sends no header of its own: the token is a part of its URL.
      client = new cloudflare.SandboxClient({ baseUrl: `${url}/t/${token}`, retryTimeoutMs: 0 });
    });

    const both = (title: string, run: (level: Level) => Promise<void>): void => {
      for (const level of ["the class Sandbox", "SandboxClient alone"] as const)
        it(`${title}: ${level}`, () => run(level));
    };

    both("a command has its output and exit code", async (level) => {
      const command = "echo out; echo err >&2; exit_code() { return 7; }; exit_code";
      const { exitCode, stdout, stderr } =
        level === "the class Sandbox"
          ? await cloud.exec(command)
          : await client.commands.execute(command, "alone");
      assert.deepEqual([exitCode, stdout, stderr], [7, "out", "err"]);
    });

    both("a session keeps its directory and variables", async (level) => {
      const exec = async (command: string): Promise<string> =>
        (level === "the class Sandbox"
          ? await cloud.exec(command)
          : await client.commands.execute(command, "kept")
        ).stdout;
      await exec("mkdir -p kept && cd kept && word='it''s'");
      assert.equal(await exec('echo "$word in ${PWD##*/}"'), "its in kept");
      await exec("cd ..; unset word");
    });

    it("what sessions and processes run is in the one table and its logs", async () => {
      await client.commands.execute("echo in the log", "logged");
      const url = `${server().url}/v1/sandboxes/${sandbox().sandboxId}/commands`;
      const headers = { "x-api-key": API_KEY };
      const [newest] = (await (await fetch(url, { headers })).json()) as { readonly command_id: string }[];
      const page = await fetch(`${url}/${newest?.command_id}/logs`, { headers });
      const { bytes, phase } = (await page.json()) as { readonly bytes: string; readonly phase: string };
      assert.deepEqual([bytes, phase], ["in the log\n", "exited"]);
      // This is what `coppice logs` asks.
      const lines = await fetch(`${server().url}/v2/sandboxes/${sandbox().sandboxId}/logs`, { headers });
      assert.match(await lines.text(), /in the log/);
    });

    it("a streamed command tells its output as it comes, and its exit code", async () => {
      const told: string[] = [];
      const { exitCode, stdout } = await cloud.exec(
        "echo one; echo two >&2; sleep 0.1; echo three; (exit 5)",
        {
          stream: true,
          onOutput: (stream, data) => void told.push(`${stream}: ${data}`),
        },
      );
      assert.deepEqual([exitCode, stdout], [5, "one\nthree\n"]);
      assert.deepEqual(told.toSorted(), ["stderr: two\n", "stdout: one\n", "stdout: three\n"]);
    });

    it("streams of hostile commands end", async () => {
      const ends: unknown[] = [];
      for (const command of [
        "exit 3",
        "set -e; false",
        "exec true",
        "cd /no/such/directory",
        "echo 'open",
        "kill -9 $$",
      ]) {
        const stream = await client.commands.executeStream(command, "ends");
        let last: { readonly type?: string; readonly exitCode?: number } = {};
        for await (const event of cloudflare.parseSSEStream<typeof last>(stream)) last = event;
        ends.push(last.type === "complete" ? last.exitCode : last.type);
      }
      assert.equal(ends.length, 6);
      for (const end of ends) assert.ok(Number.isInteger(end) || end === "error", String(end));
    });

    it(
      `${STREAMS} streams, one after the other and ${AT_ONCE} at a time, lose nothing`,
      { timeout: 60_000 + STREAMS * 200 },
      async () => {
        const once = async (number: number): Promise<void> => {
          const stream = await client.commands.executeStream(`echo ${number}`, `stream-${number % AT_ONCE}`);
          let stdout = "";
          let exitCode: number | undefined;
          for await (const event of cloudflare.parseSSEStream<{
            type: string;
            data?: string;
            exitCode?: number;
          }>(stream)) {
            if (event.type === "stdout") stdout += event.data ?? "";
            if (event.type === "complete") exitCode = event.exitCode;
          }
          assert.deepEqual([stdout, exitCode], [`${number}\n`, 0]);
        };
        for (let number = 0; number < STREAMS; number += 1) await once(number);
        for (let number = 0; number < STREAMS; number += AT_ONCE)
          await Promise.all(Array.from({ length: AT_ONCE }, (_, index) => once(number + index)));
      },
    );

    it("a process is waited for by its port, a line and its end", async () => {
      const started: Process = await cloud.startProcess(
        'python3 -u -c \'import http.server as h; print("line", 1); h.HTTPServer(("127.0.0.1", 8765), h.SimpleHTTPRequestHandler).serve_forever()\'',
      );
      await started.waitForPort(8765, { timeout: 20_000 });
      assert.equal((await started.waitForLog(/line \d/)).line, "line 1");
      assert.equal(await started.getStatus(), "running");
      await started.kill();
      assert.notEqual((await started.waitForExit(10_000)).exitCode, 0);
      const short = await cloud.startProcess("echo quick; exit 3");
      assert.equal((await short.waitForExit(10_000)).exitCode, 3);
      assert.equal((await short.getLogs()).stdout, "quick\n");
    });

    it("a process outlives its session, and is listed and killed by others", async () => {
      const session = await cloud.createSession({ id: "starter", env: { OF_SESSION: "yes" } });
      const started = await session.startProcess('echo "$OF_SESSION"; sleep 60', { processId: "outlives" });
      const { id } = started;
      await started.waitForLog("yes", 10_000);
      await session.exec("exit 1").catch(() => undefined);
      assert.equal((await cloud.getProcess(id))?.status, "running");
      assert.ok((await cloud.listProcesses()).some((each) => each.id === id));
      assert.match((await cloud.getProcessLogs(id)).stdout, /^yes\n$/);
      assert.ok((await sandbox().commands.list()).length > 0, "E2B's list has it");
      assert.equal((await cloud.killAllProcesses()) > 0, true);
      assert.equal((await cloud.getProcess(id))?.status, "killed");
    });

    it("sessions have their own state and variables", async () => {
      await cloud.exec("name=of_default");
      const session = await cloud.createSession({ id: "own", cwd: "/tmp", env: { A: "it's" } });
      assert.equal((await session.exec('echo "${name-none} $A ${PWD##*/}"')).stdout, "none it's tmp");
      await cloud.setEnvVars({ QUOTE: "a'b\"c" });
      assert.equal((await cloud.exec("printenv QUOTE")).stdout, "a'b\"c");
    });

    it("a time-out stops the command, and the session goes on", async () => {
      await assert.rejects(client.commands.execute("sleep 61.73", "timed", { timeoutMs: 300 }), {
        name: "CommandError",
        code: "COMMAND_EXECUTION_ERROR",
        message: /Command timeout after 300ms$/,
      });
      assert.equal(
        (await client.commands.execute("pgrep -f '^sleep 61[.]73' | wc -l", "timed")).stdout.trim(),
        "0",
      );
    });

    it("exit ends the shell, says so once, and the next call has a new one", async () => {
      await assert.rejects(cloud.exec("exit 42"), { name: "SessionTerminatedError", exitCode: 42 });
      assert.equal((await cloud.exec("echo again")).stdout, "again");
    });

    it("code runs in contexts, with output, results and errors", async () => {
      const context = await cloud.createCodeContext({ language: "python", cwd: "/tmp" });
      const { logs, results } = await cloud.runCode("kept = 6\nprint('out')\nkept * 7", { context });
      assert.deepEqual([logs.stdout.join(""), results.map(({ text }) => text)], ["out\n", ["42"]]);
      assert.equal((await cloud.runCode("kept", { context })).results[0]?.text, "6");
      const { error } = await cloud.runCode("1/0", { context });
      assert.equal(error?.name, "ZeroDivisionError");
      assert.ok((await cloud.listCodeContexts()).some(({ id }) => id === context.id));
      await cloud.deleteCodeContext(context.id);
    });

    it("a repository is checked out, and a directory is watched", { skip: withoutGit }, async () => {
      const { stdout: source } = await cloud.exec(
        "git init -q -b main source && cd source && echo text > file && git add file && " +
          "git -c user.name=a -c user.email=a@b commit -q -m first && pwd",
        { cwd: "/workspace" },
      );
      const { targetDir } = await cloud.gitCheckout(source, { targetDir: "/workspace/clone" });
      assert.equal((await cloud.readFile(`${targetDir}/file`)).content, "text\n");
      const leaving = new AbortController();
      const seen: unknown[] = [];
      const events = cloudflare.parseSSEStream<{ type: string; eventType?: string; path?: string }>(
        await cloud.watch("/workspace/clone", { exclude: [".git"] }),
        leaving.signal,
      );
      for await (const { type, eventType, path } of events) {
        if (type === "watching") await cloud.writeFile("/workspace/clone/new", "");
        if (type !== "event") continue;
        seen.push([eventType, path]);
        break;
      }
      leaving.abort();
      assert.deepEqual(seen, [["create", "/workspace/clone/new"]]);
    });

    it("files are written, read, listed, moved and deleted", async () => {
      await cloud.mkdir("/workspace/deep/er", { recursive: true });
      await cloud.writeFile("/workspace/deep/er/a.txt", "ä\n");
      assert.equal((await cloud.readFile("/workspace/deep/er/a.txt")).content, "ä\n");
      await cloud.exec("printf '\\0\\377' > deep/er/b.bin", { cwd: "/workspace" });
      const { content, encoding } = await cloud.readFile("/workspace/deep/er/b.bin");
      assert.deepEqual([content, encoding], [Buffer.from([0, 255]).toString("base64"), "base64"]);
      const { files } = await cloud.listFiles("/workspace/deep", { recursive: true });
      assert.deepEqual(files.map(({ relativePath }) => relativePath).toSorted(), [
        "er",
        "er/a.txt",
        "er/b.bin",
      ]);
      await cloud.renameFile("/workspace/deep/er/a.txt", "/workspace/deep/c.txt");
      assert.equal((await cloud.exists("/workspace/deep/c.txt")).exists, true);
      await cloud.deleteFile("/workspace/deep/c.txt");
      await assert.rejects(cloud.readFile("/workspace/deep/c.txt"), { name: "FileNotFoundError" });
    });
  },
  { timeoutMs: 240_000 + STREAMS * 400 },
);
