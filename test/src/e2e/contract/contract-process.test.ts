import assert from "node:assert/strict";
import { before, it } from "node:test";
import { SandboxError } from "@coppice/core";
import type { Command } from "@coppice/core/backend";
import { eventually } from "@coppice/core/testing";
import { packFrame, unpackFrames } from "../../harness/clients/connect-frames.js";
import { type EnvdClient, basicUserHeader, envdClient } from "../../harness/clients/envd-client.js";
import { onEachBackend } from "../../harness/server/on-each-backend.js";
import { openProcess, processStory, shellRequest } from "../../harness/clients/process-stream.js";

const ENDED_OK = { exited: true, status: "exit status 0" };
const KILLED = { exitCode: -1, status: "signal: killed", error: "signal: killed" };
const base64 = (text: string): string => Buffer.from(text).toString("base64");

/** Table D.4 of E2B's interface, `process.Process`, row by row. Titles are the rows; docs/compatibility.md lists them. */
onEachBackend(
  "process.Process by its contract",
  ({ backend, server, sandbox }) => {
    let envd: EnvdClient;
    before(() => {
      const { sandboxId } = sandbox();
      const token = server().sandboxes.get(sandboxId).record.accessToken;
      envd = envdClient({ url: server().url, sandboxId, token });
    });

    const start = (request: unknown, headers: Readonly<Record<string, string>> = {}) =>
      processStory(envd.stream("process.Process/Start", request, { headers }));
    const run = (script: string, more?: object, settings?: object) =>
      start(shellRequest(script, more, settings));
    const open = (script: string, more?: object) => openProcess(envd, shellRequest(script, more));
    const call = (method: string, message: unknown) => envd.call(`process.Process/${method}`, message);
    const kill = (selector: object) => call("SendSignal", { ...selector, signal: "SIGNAL_SIGKILL" });
    const gone = async (pid: number) => (await run(`kill -0 ${pid}`)).end;
    const isListed = async (wanted: number) => {
      const { body } = await call("List", {});
      return ((body.processes ?? []) as { readonly pid: number }[]).some(({ pid }) => pid === wanted);
    };

    it("D.4 Start, what is wrong with the request", async () => {
      const process = { cmd: "/bin/true" };
      const rows = [
        [
          "unknown user",
          { process },
          basicUserHeader("nobody-here"),
          "unauthenticated",
          "invalid username: 'nobody-here'",
        ],
        [
          "a cwd that is not there",
          { process: { ...process, cwd: "/no/such" } },
          {},
          "invalid_argument",
          "cwd '/no/such' does not exist",
        ],
        [
          "a relative one",
          { process: { ...process, cwd: "no/such" } },
          {},
          "invalid_argument",
          "cwd '/home/user/no/such' does not exist",
        ],
        [
          "a file as cwd",
          { process: { ...process, cwd: "/etc/passwd" } },
          {},
          "invalid_argument",
          "cwd '/etc/passwd' does not exist",
        ],
        [
          "somebody's home as cwd",
          { process: { ...process, cwd: "~root" } },
          {},
          "invalid_argument",
          "cannot expand user-specific home dir",
        ],
        [
          "an argument that nobody can pass",
          { process: { ...process, args: ["a", "\0"] } },
          {},
          "invalid_argument",
          "error starting process '/bin/true a \\0': arguments and variables cannot contain a NUL byte",
        ],
      ] as const;
      for (const [what, request, headers, code, message] of rows) {
        const { names, trailer } = await start(request, headers);
        assert.deepEqual({ names, trailer }, { names: [], trailer: { error: { code, message } } }, what);
      }
      for (const timeout of ["soon", "1.5", "-1", "1e3"]) {
        const { trailer } = await start({ process }, { "connect-timeout-ms": timeout });
        assert.equal((trailer as { error?: { code?: string } }).error?.code, "invalid_argument", timeout);
      }
    });

    it("D.4 Start, cwd: absent, empty, ~, relative and absolute", async () => {
      await run("mkdir -p in/side");
      for (const [cwd, expected] of [
        [undefined, ""],
        ["", ""],
        ["~", ""],
        ["~/in", "/in"],
        ["in/./side/..", "/in"],
        ["/home/user/in/side", "/in/side"],
      ] as const) {
        const { stdout } = await run("pwd", {}, cwd === undefined ? {} : { cwd });
        assert.ok(stdout.endsWith(`/home/user${expected}\n`), `${cwd}: ${stdout}`);
      }
      const { stdout } = await start(shellRequest("pwd; echo $HOME $USER"), basicUserHeader("root"));
      assert.match(stdout, /^(\/.*)?\/root\n(\/.*)?\/root root\n$/);
    });

    it("D.4 Start, an unknown program ends with 127 and says so on stderr", async () => {
      for (const cmd of ["no-such-program", "/no/such/program", "/etc/passwd"]) {
        const { end, stderr, trailer } = await start({ process: { cmd } });
        const { exitCode } = end as { exitCode: number };
        assert.ok(exitCode === 127 || (cmd === "/etc/passwd" && exitCode === 126), `${cmd}: ${exitCode}`);
        assert.match(stderr, new RegExp(cmd));
        assert.deepEqual(trailer, {});
      }
    });

    it("D.4 Start, exec failure and PTY failure", async ({ mock }) => {
      const { runtime } = server().sandboxes.get(sandbox().sandboxId);
      const failing = async () => {
        throw new SandboxError("terminal_unavailable", "out of luck");
      };
      const request = { process: { cmd: "/bin/ls", args: ["-l", "/"], cwd: "/tmp" } };
      const pty = { size: { cols: 81, rows: 25 } };
      mock.method(runtime, "spawn", failing);
      for (const [more, message] of [
        [{}, "error starting process '/bin/ls -l /': out of luck"],
        [
          { pty },
          "error starting pty with command '/bin/ls -l /' in dir '/tmp' with '81' cols and '25' rows: out of luck",
        ],
      ] as const) {
        const { trailer } = await start({ ...request, ...more });
        assert.deepEqual(trailer, { error: { code: "invalid_argument", message } });
      }
    });

    it("D.4 Start, the pid is that of the program itself as the sandbox sees it", async () => {
      const { pid, stdout } = await start({ process: { cmd: "/bin/sh", args: ["-c", "echo $$"] } });
      assert.equal(stdout, `${pid}\n`);
    });

    it("D.4 Start, the user's ids are the process's", { skip: skipsUsers(backend) }, async () => {
      const ids = async (name?: string) =>
        (await start(shellRequest("id -un; id -u; id -gn"), name === undefined ? {} : basicUserHeader(name)))
          .stdout;
      assert.equal(await ids(), "user\n1000\nuser\n");
      assert.equal(await ids("user"), "user\n1000\nuser\n");
      assert.equal(await ids("root"), "root\n0\nroot\n");
      assert.equal(await ids(""), "user\n1000\nuser\n");
    });

    it("D.4 Start, the environment is the account's, then the sandbox's, then the request's, and nothing else", async () => {
      const { sandboxId } = sandbox();
      const { stdout } = await start({
        process: { cmd: "env", envs: { E2B_TEMPLATE_ID: "mine", OWN: "a b" } },
      });
      const variables = new Map(
        stdout
          .trimEnd()
          .split("\n")
          .map((line) => line.split(/=(.*)/s, 2) as [string, string]),
      );
      // Labels by which local-process finds its processes again.
      for (const name of variables.keys()) if (name.startsWith("COPPICE_")) variables.delete(name);
      assert.match(variables.get("PATH") ?? "", /\/usr\/bin/);
      assert.match(variables.get("HOME") ?? "", /\/home\/user$/);
      for (const name of ["PATH", "HOME"]) variables.delete(name);
      assert.deepEqual(Object.fromEntries(variables), {
        USER: "user",
        LOGNAME: "user",
        E2B_SANDBOX: "true",
        E2B_SANDBOX_ID: sandboxId,
        E2B_TEMPLATE_ID: "mine",
        OWN: "a b",
      });
    });

    it("D.4 Start, what the SDKs run is a login shell, which reads the profiles", async () => {
      await run("echo 'export OF_USER=\"mine $OF_ALL\"' >>~/.profile");
      const ofAll = backend === "linux-namespaces" ? "ours" : "";
      if (ofAll !== "") {
        await start(shellRequest(`echo 'export OF_ALL=${ofAll}' >>/etc/profile`), basicUserHeader("root"));
      }
      const command = await start({
        process: { cmd: "/bin/bash", args: ["-l", "-c", "echo $OF_USER"] },
        stdin: false,
      });
      assert.equal(command.stdout, `mine ${ofAll}`.trimEnd() + "\n");
      const terminal = await openProcess(envd, {
        process: { cmd: "/bin/bash", args: ["-i", "-l"], envs: { TERM: "xterm-256color" } },
        pty: { size: { cols: 80, rows: 24 } },
      });
      const input = { pty: base64("echo got-$OF_USER; exit 5\n") };
      assert.equal((await call("SendInput", { ...terminal.selector, input })).status, 200);
      const { pty, end } = await terminal.rest();
      assert.match(pty, new RegExp(`got-mine ?${ofAll}\r\n`));
      assert.equal((end as { exitCode: number }).exitCode, 5);
    });

    it("D.4 Start, stdin: false is empty, absent and true are a pipe", async () => {
      assert.equal((await run("cat; readlink /proc/self/fd/0 >&2", { stdin: false })).stdout, "");
      for (const more of [{}, { stdin: true }]) {
        const cat = await open("cat", more);
        assert.equal(
          (await call("SendInput", { ...cat.selector, input: { stdin: base64("fed") } })).status,
          200,
        );
        assert.deepEqual(await call("CloseStdin", cat.selector), { status: 200, body: {} });
        assert.equal((await cat.rest()).stdout, "fed");
      }
    });

    it("D.4 Start, a terminal has the size asked for, and its output is pty alone", async () => {
      const size = { cols: 123, rows: 45 };
      const { names, pty, stdout, stderr, end } = await run("stty size; echo wrong >&2; tty", {
        pty: { size },
      });
      assert.match(pty, /^45 123\r\nwrong\r\n\/dev\/pts\/\d+\r\n$/);
      assert.equal(stdout + stderr, "");
      assert.deepEqual(new Set(names), new Set(["start", "data", "end"]));
      assert.deepEqual(end, ENDED_OK);
    });

    it("D.4 Start, data is in pieces of at most 32 KiB, of a terminal 16 KiB, all before the end", async () => {
      for (const [name, most, more] of [
        ["stdout", 32_768, {}],
        ["pty", 16_384, { pty: { size: { cols: 80, rows: 24 } } }],
      ] as const) {
        const frames = await Array.fromAsync(
          envd.stream("process.Process/Start", shellRequest("head -c 600000 /dev/zero", more)),
        );
        const sizes = frames.map(({ message }) => {
          const data = (message as { event?: { data?: Record<string, string> } }).event?.data?.[name] ?? "";
          return Buffer.from(data, "base64").length;
        });
        assert.equal(
          sizes.reduce((sum, size) => sum + size, 0),
          600_000,
          name,
        );
        assert.ok(Math.max(...sizes) <= most, `${name}: ${Math.max(...sizes)}`);
        assert.deepEqual(sizes.slice(-2), [0, 0], "the end and the end of the stream come last");
      }
    });

    it("D.4 Start, a silent stream gets keepalives in the interval asked for", async () => {
      const silent = await openProcess(envd, shellRequest("read line"), {
        headers: { "keepalive-ping-interval": "1" },
      });
      assert.deepEqual(await silent.next(), { keepalive: {} });
      await kill(silent.selector);
      await silent.rest();
    });

    it("D.4 Start, the end waits for everybody who holds the output, but not after a kill", async () => {
      await run("mkfifo go");
      const waiting = await open("(cat go) & echo first; exit 7");
      assert.equal((await waiting.next()).data?.stdout, base64("first\n"));
      const rest = waiting.rest();
      await run("echo late >go");
      const { stdout, end } = await rest;
      assert.equal(stdout, "late\n", "what a child writes after the end of its parent is output too");
      assert.deepEqual(end, { exitCode: 7, exited: true, status: "exit status 7", error: "exit status 7" });

      const killed = await open("sleep 300 & echo $!; wait");
      const child = Number(Buffer.from((await killed.next()).data?.stdout ?? "", "base64"));
      assert.equal((await kill(killed.selector)).status, 200);
      assert.deepEqual((await killed.rest()).end, KILLED, "while its child holds the output open");
      assert.deepEqual(await gone(child), ENDED_OK, "the signal was for the process, not for its group");
      await run(`kill -9 ${child}`);
    });

    for (const [row, script, end] of [
      ["D.4 end, exit 0", "exit 0", ENDED_OK],
      [
        "D.4 end, exit n",
        "exit 43",
        { exitCode: 43, exited: true, status: "exit status 43", error: "exit status 43" },
      ],
      ["D.4 end, killed by SIGKILL of its own", "kill -9 $$", KILLED],
      [
        "D.4 end, killed by SIGTERM",
        "kill -TERM $$",
        { exitCode: -1, status: "signal: terminated", error: "signal: terminated" },
      ],
      [
        "D.4 end, killed by a signal with another name",
        "kill -HUP $$",
        { exitCode: -1, status: "signal: hangup", error: "signal: hangup" },
      ],
    ] as const) {
      it(row, async () => {
        const said = await run(script);
        assert.deepEqual(said.end, end);
        assert.deepEqual(said.trailer, {});
      });
    }

    it("D.4 time-out, the process is killed and the stream ends with deadline_exceeded, without end", async () => {
      const { names, trailer, pid } = await start(shellRequest("exec sleep 300"), {
        "connect-timeout-ms": "1000",
      });
      assert.ok(!names.includes("end"));
      assert.deepEqual(trailer, {
        error: { code: "deadline_exceeded", message: "context deadline exceeded" },
      });
      const { end } = await processStory(envd.stream("process.Process/Connect", { process: { pid } }));
      assert.deepEqual(end, KILLED);
    });

    it("D.4 disconnect, the process lives on and its deadline goes on ticking", async () => {
      const leaving = new AbortController();
      const options = { signal: leaving.signal, headers: { "connect-timeout-ms": "3000" } };
      const left = await openProcess(envd, shellRequest("exec sleep 300"), options);
      leaving.abort();
      await assert.rejects(left.rest());
      assert.equal(await isListed(left.pid), true);
      await eventually("its deadline", async () => !(await isListed(left.pid)), 10_000);
      const late = await openProcess(envd, left.selector, { method: "Connect" });
      assert.deepEqual((await late.rest()).end, KILLED);
    });

    it("D.4 Connect, every subscriber has its own copy from then on, and nothing of before", async () => {
      const first = await open("echo before; read go; echo after; exit 3");
      assert.equal((await first.next()).data?.stdout, base64("before\n"));
      const others = await Promise.all(
        [1, 2, 3].map(() => openProcess(envd, first.selector, { method: "Connect" })),
      );
      assert.deepEqual(
        others.map(({ pid }) => pid),
        [first.pid, first.pid, first.pid],
      );
      await call("SendInput", { ...first.selector, input: { stdin: base64("go\n") } });
      for (const one of [first, ...others]) {
        const { stdout, end, trailer } = await one.rest();
        assert.equal(stdout, "after\n");
        assert.equal((end as { status: string }).status, "exit status 3");
        assert.deepEqual(trailer, {});
      }
    });

    it("D.4 Connect, after the end it is start and end for a while, then not_found", async () => {
      const { pid } = await run("echo output; exit 5");
      const late = () => processStory(envd.stream("process.Process/Connect", { process: { pid } }));
      const { names, end } = await late();
      assert.deepEqual(names, ["start", "end"]);
      assert.equal((end as { exitCode: number }).exitCode, 5);
      const missing = { error: { code: "not_found", message: `process with pid ${pid} not found` } };
      const forgotten = await eventually("its end is forgotten", async () => {
        const { names: later, trailer } = await late();
        return later.length === 0 && trailer;
      });
      assert.deepEqual(forgotten, missing);
    });

    it("D.4 List, what runs, by its request, and nothing that has ended", async () => {
      const { pid: ended } = await run("true");
      const request = {
        process: { cmd: "/bin/sh", args: ["-c", "read x"], envs: { A: "1" }, cwd: "/tmp" },
        tag: "listed",
      };
      const running = await openProcess(envd, request);
      const { body } = await call("List", {});
      const listed = body.processes as readonly { readonly pid: number }[];
      assert.deepEqual(
        listed.find(({ pid }) => pid === running.pid),
        { config: request.process, pid: running.pid, tag: "listed" },
      );
      assert.ok(listed.every(({ pid }) => pid !== ended));
      await kill(running.selector);
      await running.rest();
    });

    it("D.4 any with selector, unknown pid and tag", async () => {
      for (const [process, message] of [
        [{ pid: 4_000_000 }, "process with pid 4000000 not found"],
        [{ tag: "nobody" }, "process with tag nobody not found"],
      ] as const) {
        const refusal = { code: "not_found", message };
        for (const method of ["Update", "SendInput", "SendSignal", "CloseStdin"]) {
          assert.deepEqual(
            await call(method, { process, signal: 9 }),
            { status: 404, body: refusal },
            method,
          );
        }
        const connect = await processStory(envd.stream("process.Process/Connect", { process }));
        assert.deepEqual(connect.trailer, { error: refusal });
        const [only] = await Array.fromAsync(
          envd.stream("process.Process/StreamInput", { start: { process } }),
        );
        assert.deepEqual(only, { flags: 2, message: { error: refusal } });
      }
    });

    it("D.4 any with empty selector", async () => {
      for (const process of [undefined, {}]) {
        for (const method of ["Update", "SendInput", "SendSignal", "CloseStdin"]) {
          const { status, body } = await call(method, { process, signal: 9 });
          assert.deepEqual([status, body.code], [501, "unimplemented"], method);
          assert.match(body.message, /^invalid input type/);
        }
      }
    });

    it("D.4 SendInput stdin, PTY process; SendInput pty, not a PTY; CloseStdin, PTY; Update with pty, not a PTY", async () => {
      const terminal = await open("cat", { pty: { size: { cols: 80, rows: 24 } } });
      const pipe = await open("cat");
      const size = { size: { cols: 1, rows: 2 } };
      const rows = [
        [
          "SendInput",
          { ...terminal.selector, input: { stdin: "eA==" } },
          "internal",
          "error writing to stdin: tty assigned to process — input should be written to the pty, not the stdin",
        ],
        [
          "SendInput",
          { ...pipe.selector, input: { pty: "eA==" } },
          "internal",
          "error writing to tty: tty not assigned to process — input should be written to the stdin, not the tty",
        ],
        [
          "CloseStdin",
          terminal.selector,
          "unknown",
          "error closing stdin: cannot close stdin for PTY process — send Ctrl+D (0x04) instead",
        ],
        [
          "Update",
          { ...pipe.selector, pty: size },
          "internal",
          "error resizing tty: tty not assigned to process",
        ],
      ] as const;
      for (const [method, request, code, message] of rows) {
        assert.deepEqual(await call(method, request), { status: 500, body: { code, message } });
      }
      await call("CloseStdin", pipe.selector);
      await call("SendInput", { ...terminal.selector, input: { pty: "BA==" } });
      assert.deepEqual((await pipe.rest()).end, ENDED_OK);
      assert.deepEqual((await terminal.rest()).end, ENDED_OK);
    });

    it("D.4 SendInput stdin, no pipe or closed; SendInput, neither set; CloseStdin, already closed or none", async () => {
      const none = await open("sleep 300", { stdin: false });
      const closed = await open("exec sleep 300");
      for (const { selector } of [none, closed]) {
        for (let time = 0; time < 2; time += 1) {
          assert.deepEqual(await call("CloseStdin", selector), { status: 200, body: {} });
        }
        const refusal = { code: "internal", message: "error writing to stdin: stdin not enabled or closed" };
        const input = { ...selector, input: { stdin: "eA==" } };
        assert.deepEqual(await call("SendInput", input), { status: 500, body: refusal });
        for (const neither of [selector, { ...selector, input: {} }]) {
          const { status, body } = await call("SendInput", neither);
          assert.deepEqual([status, body.code], [501, "unimplemented"]);
        }
        await kill(selector);
      }
      await Promise.all([none.rest(), closed.rest()]);
    });

    it("D.4 SendInput, empty payloads are valid and do nothing", async () => {
      const cat = await open("cat");
      const terminal = await open("cat", { pty: {} });
      for (const request of [
        { ...cat.selector, input: { stdin: "" } },
        { ...terminal.selector, input: { pty: "" } },
      ]) {
        assert.deepEqual(await call("SendInput", request), { status: 200, body: {} });
      }
      await call("CloseStdin", cat.selector);
      assert.equal((await cat.rest()).stdout, "");
      await call("SendInput", { ...terminal.selector, input: { pty: "BA==" } });
      assert.deepEqual((await terminal.rest()).end, ENDED_OK);
    });

    it("D.4 Update, a terminal is resized and its program told", async () => {
      const script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done";
      const terminal = await open(script, { pty: { size: { cols: 80, rows: 24 } } });
      await terminal.next();
      const resize = { ...terminal.selector, pty: { size: { cols: 33, rows: 11 } } };
      assert.deepEqual(await call("Update", resize), { status: 200, body: {} });
      assert.match((await terminal.rest()).pty, /11 33\r\n/);
    });

    it("D.4 SendSignal, not KILL or TERM", async () => {
      const sleeper = await open("exec sleep 300");
      const { status, body } = await call("SendSignal", sleeper.selector);
      assert.deepEqual(
        { status, body },
        { status: 501, body: { code: "unimplemented", message: "invalid signal: SIGNAL_UNSPECIFIED" } },
      );
      assert.equal((await call("SendSignal", { ...sleeper.selector, signal: 2 })).body.code, "unimplemented");
      const term = await call("SendSignal", { ...sleeper.selector, signal: "SIGNAL_SIGTERM" });
      assert.deepEqual(term, { status: 200, body: {} });
      assert.equal(((await sleeper.rest()).end as { status: string }).status, "signal: terminated");
    });

    it("D.4 SendSignal, OS error", async ({ mock }) => {
      const { runtime } = server().sandboxes.get(sandbox().sandboxId);
      const { spawn } = Object.getPrototypeOf(runtime) as { readonly spawn: typeof runtime.spawn };
      const spawning = mock.method(runtime, "spawn", async (command: Command) => {
        const process = await spawn.call(runtime, command);
        mock.method(process, "kill", async () => {
          throw new SandboxError("signal_not_permitted", "kill: EPERM");
        });
        return process;
      });
      const cat = await open("cat");
      spawning.mock.restore();
      const message = "error sending signal: kill: EPERM";
      assert.deepEqual(await kill(cat.selector), { status: 500, body: { code: "internal", message } });
      await call("CloseStdin", cat.selector);
      assert.deepEqual((await cat.rest()).end, ENDED_OK);
    });

    it("D.4 kill, the pid is gone when the answer is there", async () => {
      for (let time = 0; time < 10; time += 1) {
        const sleeper = await open("exec sleep 300");
        assert.deepEqual(await kill(sleeper.selector), { status: 200, body: {} });
        const { exitCode } = (await gone(sleeper.pid)) as { exitCode?: number };
        assert.equal(exitCode, 1);
        assert.equal((await kill(sleeper.selector)).status, 404);
        await sleeper.rest();
      }
    });

    it("D.4 tags, each finds its own process, whatever else runs", async () => {
      const tagged = await Promise.all(
        ["one", "two", "three"].map((tag) => open(`read x; echo ${tag} $x`, { tag })),
      );
      for (const tag of ["three", "one", "two"]) {
        const input = { process: { tag }, input: { stdin: base64(`for ${tag}\n`) } };
        assert.equal((await call("SendInput", input)).status, 200);
      }
      const said = await Promise.all(tagged.map((one) => one.rest()));
      assert.deepEqual(
        said.map(({ stdout }) => stdout),
        ["one for one\n", "two for two\n", "three for three\n"],
      );
    });

    it("D.4 StreamInput, start, data and keepalives in one request", async () => {
      const cat = await open("cat");
      const messages = [
        { start: cat.selector },
        { data: { input: { stdin: base64("stream") } } },
        { keepalive: {} },
        { data: { input: { stdin: base64("ed") } } },
      ];
      const answer = await envd.send("POST", "/process.Process/StreamInput", {
        headers: { "content-type": "application/connect+json" },
        body: Buffer.concat(messages.map((message) => packFrame(JSON.stringify(message)))),
      });
      assert.deepEqual(unpackFrames(answer.body), [
        { flags: 0, message: {} },
        { flags: 2, message: {} },
      ]);
      await call("CloseStdin", cat.selector);
      assert.equal((await cat.rest()).stdout, "streamed");
      const headless = await envd.send("POST", "/process.Process/StreamInput", {
        headers: { "content-type": "application/connect+json" },
        body: packFrame(JSON.stringify(messages[1])),
      });
      const [only] = unpackFrames(headless.body);
      const { error } = (only?.message ?? {}) as { readonly error?: { readonly code: string } };
      assert.equal(error?.code, "invalid_argument");
    });
  },
  { settings: { commands: { endedRetention: "2s" } } },
);

function skipsUsers(backend: string): string | false {
  return backend === "local-process" ? "all accounts of local-process are the server's own" : false;
}
