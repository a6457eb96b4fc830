import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { readdir, readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { type Context, Sandbox } from "@e2b/code-interpreter";
import { WebSocket } from "ws";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import {
  type Installation,
  makeInstallation,
  namespacePlugins,
  ServerProcess,
} from "../../harness/server/server-process.js";

interface KernelModel {
  readonly id: string;
  readonly name: string;
}

interface SessionModel {
  readonly id: string;
  readonly path: string;
  readonly kernel: KernelModel;
}

interface KernelMessage {
  readonly msg_type: string;
  readonly parent_header: { readonly msg_id?: string };
  readonly content: Readonly<Record<string, unknown>>;
}

const OLDEST_NODE = 20;

describe(
  "kernels of sandboxes that outlive their server",
  { skip: missingForNamespaces(), timeout: 240_000 },
  () => {
    let installation: Installation;
    let server: ServerProcess;
    let sandbox: Sandbox;
    const contexts = new Map<string, Context>();

    before(async () => {
      installation = await makeInstallation({
        config: { sandboxes: { defaultBackend: "linux-namespaces", onShutdown: "keep" } },
        plugins: (directory) => ({
          ...namespacePlugins(directory),
          jupyter: { python: "python3", interruptGrace: "3s", startTimeout: "6s" },
        }),
      });
      await start();
      sandbox = await Sandbox.create({ envs: { GIVEN: "at create" } });
    });
    after(async () => {
      await sandbox.kill();
      await server.stop();
      await installation.remove();
    });

    async function start(): Promise<void> {
      server = await ServerProcess.start(installation.configFile);
      pointSdkAt(server.url);
    }

    /** Kills the server and starts another one in its place. */
    async function restart(): Promise<void> {
      server.signal("SIGKILL");
      await server.ended;
      await start();
      sandbox = await Sandbox.connect(sandbox.sandboxId);
    }

    function contextNamed(name: string): Context {
      const context = contexts.get(name);
      assert.ok(context, name);
      return context;
    }

    function token(): string {
      return (sandbox as unknown as { envdAccessToken: string }).envdAccessToken;
    }

    async function jupyter<T>(path: string, body?: object): Promise<T> {
      const response = await fetch(`${server.url}/sandboxes/${sandbox.sandboxId}/jupyter/api/${path}`, {
        headers: { authorization: `token ${token()}` },
        ...(body && { method: "POST", body: JSON.stringify(body) }),
      });
      assert.ok(response.ok, `${path}: ${response.status}`);
      return (await response.json()) as T;
    }

    async function channels(
      kernelId: string,
      session: string,
    ): Promise<{ readonly socket: WebSocket; readonly messages: KernelMessage[] }> {
      const url = `${server.url.replace(/^http/, "ws")}/sandboxes/${sandbox.sandboxId}/jupyter/api/kernels/${kernelId}/channels`;
      const socket = new WebSocket(`${url}?session_id=${session}&token=${token()}`);
      const messages: KernelMessage[] = [];
      socket.on("message", (data: Buffer) => messages.push(JSON.parse(data.toString()) as KernelMessage));
      socket.on("error", () => undefined);
      await once(socket, "open");
      return { socket, messages };
    }

    function executeRequest(session: string, code: string) {
      const id = randomUUID();
      const header = { msg_id: id, msg_type: "execute_request", session, username: "u", version: "5.3" };
      const content = { code, silent: false, store_history: true, allow_stdin: false };
      return {
        id,
        text: JSON.stringify({ channel: "shell", header, parent_header: {}, metadata: {}, content }),
      };
    }

    it("keep their state, ids, languages and directories when the server is killed", async (test) => {
      await sandbox.runCode("x = 42\nimport os; pid = os.getpid()");
      const python = await sandbox.createCodeContext({ cwd: "/tmp" });
      await sandbox.runCode("x = 'other'", { context: python });
      const bash = await sandbox.createCodeContext({ language: "bash", cwd: "/tmp" });
      await sandbox.runCode('x=44; f() { echo "f says $x"; }; cd /usr', { context: bash });
      contexts.set("python", python).set("bash", bash);
      const node = await sandbox.commands.run("node --version || true");
      if (Number(/^v(\d+)/.exec(node.stdout)?.[1] ?? 0) >= OLDEST_NODE) {
        const javascript = await sandbox.createCodeContext({ language: "javascript" });
        await sandbox.runCode("let x = 45; const later = setTimeout(() => { x++ }, 100)", {
          context: javascript,
        });
        contexts.set("javascript", javascript);
      } else test.diagnostic(`no JavaScript: the host has no Node.js ${OLDEST_NODE} for its sandboxes`);
      const session = await jupyter<SessionModel>("sessions", {
        path: "/a.ipynb",
        name: "a",
        type: "notebook",
      });
      const listed = await sandbox.listCodeContexts();
      const kernels = await jupyter<readonly KernelModel[]>("kernels");

      await restart();
      assert.deepEqual(await sandbox.listCodeContexts(), listed);
      const { id: defaultId } = listed[0] as Context;
      assert.equal((await sandbox.runCode("print(x)")).logs.stdout.join(""), "42\n");
      const counted = await sandbox.runCode("(pid == os.getpid(), os.getcwd(), os.environ['GIVEN'])");
      assert.equal(counted.text, "(True, '/home/user', 'at create')");
      assert.equal(counted.executionCount, 3);
      assert.equal((await sandbox.runCode("x + 1", { context: { ...python, id: defaultId } })).text, "43");
      const other = await sandbox.runCode("import os; (x, os.getcwd())", { context: python });
      assert.equal(other.text, "('other', '/tmp')");
      const shell = await sandbox.runCode("f; pwd", { context: bash });
      assert.equal(shell.logs.stdout.join(""), "f says 44\n/usr\n");
      const javascript = contexts.get("javascript");
      if (javascript !== undefined)
        assert.equal((await sandbox.runCode("x", { context: javascript })).text, "46");

      const ids = (models: readonly KernelModel[]): readonly string[] =>
        models.map(({ id, name }) => `${id} ${name}`);
      assert.deepEqual(ids(await jupyter("kernels")), ids(kernels));
      const [again, ...more] = await jupyter<readonly SessionModel[]>("sessions");
      assert.deepEqual(more, []);
      assert.deepEqual(
        [again?.id, again?.path, again?.kernel.id],
        [session.id, "/a.ipynb", session.kernel.id],
      );
    });

    it("are free of what the killed server ran, whose client was told of its end", async () => {
      const started = Promise.withResolvers<void>();
      const running = sandbox
        .runCode("import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.01)", {
          onStdout: () => started.resolve(),
          timeoutMs: 0,
        })
        .then(
          ({ error }) => error?.name ?? "no error",
          (error: unknown) => String(error),
        );
      await started.promise;
      const bash = contextNamed("bash");
      const sleeping = sandbox.runCode("sleep 1000", { context: bash, timeoutMs: 0 }).catch(() => undefined);
      await eventually("the command of the bash cell", async () =>
        (await sandbox.commands.run("pgrep -fx 'sleep 1000' || true")).stdout.trim(),
      );
      await restart();
      assert.notEqual(await running, "no error");
      await sleeping;
      const next = await sandbox.runCode("print(x)");
      assert.equal(next.error, undefined);
      assert.deepEqual(next.logs.stdout, ["42\n"], "nothing of the old request");
      assert.equal((await sandbox.runCode("f", { context: bash })).logs.stdout.join(""), "f says 44\n");
    });

    it("go on with what a Jupyter client runs, which hears of its end when it comes back", async () => {
      const [{ kernel }] = await jupyter<readonly [SessionModel]>("sessions");
      const session = randomUUID();
      const first = await channels(kernel.id, session);
      const request = executeRequest(
        session,
        "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nlate = 7; print('over')",
      );
      first.socket.send(request.text);
      await eventually("its first output", () =>
        first.messages.some(({ msg_type: type }) => type === "stream"),
      );
      await restart();
      const second = await channels(kernel.id, session);
      await sandbox.files.write("go", "");
      const own = (): readonly KernelMessage[] =>
        second.messages.filter(({ parent_header: parent }) => parent.msg_id === request.id);
      await eventually("its end", () => own().some(({ content }) => content["execution_state"] === "idle"));
      assert.deepEqual(
        own().map(({ content }) => content["text"] ?? content["execution_state"]),
        ["over\n", "idle"],
      );
      second.socket.terminate();
      first.socket.terminate();
      const [, ...later] = await sandbox.listCodeContexts();
      const context = later.find(({ id }) => id === kernel.id);
      assert.ok(context);
      assert.equal((await sandbox.runCode("late", { context })).text, "7");
    });

    it("live through a server that is stopped as it should be", async () => {
      await server.stop();
      await start();
      sandbox = await Sandbox.connect(sandbox.sandboxId);
      assert.equal((await sandbox.runCode("print(x)")).logs.stdout.join(""), "42\n");
    });

    it("of a paused sandbox are taken over when it is resumed", async () => {
      await sandbox.pause();
      await restart();
      assert.equal((await sandbox.runCode("print(x)")).logs.stdout.join(""), "42\n");
    });

    it("that cannot be taken over are ended and replaced, in the same context", async () => {
      const python = contextNamed("python");
      const bash = contextNamed("bash");
      const { text } = await sandbox.runCode("import os; os.getpid()", { context: python });
      const parent = await sandbox.runCode("echo $PPID", { context: bash });
      server.signal("SIGKILL");
      await server.ended;
      // When the next server starts, one kernel is gone and the other does not answer.
      const [dead = 0, silent = 0] = await hostPids([Number(text), Number(parent.logs.stdout.join(""))]);
      process.kill(dead, "SIGKILL");
      process.kill(silent, "SIGSTOP");
      await start();
      sandbox = await Sandbox.connect(sandbox.sandboxId);
      const fresh = await sandbox.runCode("import os; ('x' in globals(), os.getcwd())", { context: python });
      assert.equal(fresh.text, "(False, '/tmp')");
      assert.equal(fresh.executionCount, 1);
      const replaced = await sandbox.runCode('echo "$x, $PWD"', { context: bash });
      assert.equal(replaced.logs.stdout.join(""), ", /tmp\n");
      assert.deepEqual(await hostPids([Number(parent.logs.stdout.join(""))]), []);
      const page = await (await fetch(`${server.urls["ops"]}/metrics`)).text();
      assert.match(page, /^coppice_jupyter_restarts_total\{cause="lost"\} 2$/m);
      assert.match(page, /^coppice_jupyter_kernels_adopted_total [1-9]$/m);
    });

    it("leave no key where others can read it, and nothing when the sandbox ends", async () => {
      const directory = join(installation.directory, "data", "jupyter", "kernels");
      const [name = ""] = await readdir(directory);
      assert.equal(name, `${sandbox.sandboxId}.json`);
      assert.equal((await stat(join(directory, name))).mode & 0o077, 0);
      const key = /"key":"([0-9a-f]{64})"/.exec(await readFile(join(directory, name), "utf8"))?.[1] ?? "";
      assert.notEqual(key, "");
      // The brackets keep grep from matching its own command line.
      const pattern = `${key.slice(0, -1)}[${key.slice(-1)}]`;
      const seen = await sandbox.commands.run(
        `grep -rls '${pattern}' /proc/[0-9]*/cmdline /proc/[0-9]*/environ /home /tmp /run || true`,
        { user: "root" },
      );
      assert.equal(seen.stdout, "");
      await sandbox.kill();
      await eventually("the end of the notes", async () => (await readdir(directory)).length === 0);
    });

    /** Host pids of processes of the sandbox. */
    async function hostPids(inside: readonly number[]): Promise<readonly number[]> {
      const found = new Map<number, number>();
      for (const pid of await readdir("/proc")) {
        const status = await readFile(`/proc/${pid}/status`, "utf8").catch(() => "");
        const names = /^NSpid:\t(.*)$/m.exec(status)?.[1]?.split("\t").map(Number) ?? [];
        const cgroup = await readFile(`/proc/${pid}/cgroup`, "utf8").catch(() => "");
        const last = names.at(-1);
        if (names.length > 1 && last !== undefined && cgroup.includes(sandbox.sandboxId))
          found.set(last, Number(pid));
      }
      return inside.map((pid) => found.get(pid) ?? 0).filter((pid) => pid > 0);
    }
  },
);
