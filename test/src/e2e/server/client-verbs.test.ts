import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { execFile } from "node:child_process";
import { mkdir, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { type AddressInfo, connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { after, before, describe, it } from "node:test";
import { eventually, type TestServer } from "@coppice/core/testing";
import { API_KEY } from "../../harness/server/api-key.js";
import { startCoppice, startCoppiceInTerminal } from "../../harness/server/coppice-command.js";
import { PYTHON } from "../../harness/host/python.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { COPPICE } from "../../harness/server/server-process.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

describe("the verbs of a client", { timeout: 480_000 }, () => {
  let server: TestServer;
  let folder: string;
  let id: string;

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), "coppice-client-"));
    server = await startFullServer({
      server: { sandboxes: { maximum: 110 } },
      settings: { "sandbox-api": { domain: "sandboxes.localhost:3000" } },
    });
    id = (await text("create", "--ttl", "10m", "--env", "GREETING=hello", "--metadata", "team=a=b")).trim();
  });
  after(async () => {
    await server.stop();
    await rm(folder, { recursive: true, force: true });
  });

  const environment = (): Readonly<Record<string, string>> => ({
    E2B_API_URL: server.url,
    E2B_API_KEY: API_KEY,
    XDG_CONFIG_HOME: folder,
  });
  const start = (...args: readonly string[]) => startCoppice(args, environment());
  const run = (...args: readonly string[]) => start(...args).end;
  const text = async (...args: readonly string[]): Promise<string> => {
    const { code, stdout, stderr } = await run(...args);
    assert.deepEqual({ code, stderr }, { code: 0, stderr: "" });
    return stdout.toString();
  };

  it("make a sandbox and print its id, or all that the server says of it", async () => {
    assert.match(id, /^i[a-z0-9]{15,30}$/);
    const record = server.sandboxes.get(id).record;
    assert.equal(record.timeoutMs, 600_000);
    assert.deepEqual(record.metadata, { team: "a=b" });
    const made = JSON.parse(await text("create", "--json")) as { readonly sandboxId: string };
    assert.equal(server.sandboxes.get(made.sandboxId).record.template, "base");
    await text("kill", made.sandboxId);
  });

  it("list every page of sandboxes in columns, or as JSON, and show no control characters", async () => {
    const { record } = server.sandboxes.get(id);
    const startedAt = new Date(record.startedAtMs).toISOString();
    assert.match(await text("ps"), new RegExp(`^${id}\tbase\trunning\t${startedAt}\t[^\n]*\tteam=a=b\n$`));
    const wanted = { template: "base", timeoutMs: 600_000, secure: true, metadata: { a: "\u001B[2J" } };
    const more = await Promise.all(Array.from({ length: 100 }, () => server.sandboxes.create(wanted)));
    const shown = await startCoppiceInTerminal(["ps"], { ...environment(), NO_COLOR: "1" }).end;
    assert.match(shown.stdout.toString(), /^ID +TEMPLATE +STATE +STARTED +END +CPU +MEMORY +METADATA\r\n/);
    assert.match(shown.stdout.toString(), / a=\\x1b\[2J\r\n/);
    assert.ok(!shown.stdout.includes("\u001B"));
    const listed = JSON.parse(await text("ps", "--json", "--state", "running")) as readonly unknown[];
    assert.equal(listed.length, 101);
    await Promise.all(more.map((sandbox) => server.sandboxes.kill(sandbox.record.id)));
    assert.equal(await text("ps", "--fields", "state,id"), `running\t${id}\n`);
    assert.equal(await text("ps", "--metadata", "team=other"), "");
    const { code, stdout } = await startCoppice(["ps"], { ...environment(), COPPICE_PS_FIELDS: "id" }).end;
    assert.deepEqual([code, stdout.toString()], [0, `${id}\n`]);
  });

  it("pass on a command's output byte by byte and end as it did, which no use puts off", async () => {
    const script = "printf 'out '; printf $GREETING; printf 'to stderr' >&2; exit 43";
    const { code, stdout, stderr } = await run("exec", id, "--", "sh", "-c", script);
    assert.deepEqual(
      { code, stdout: stdout.toString(), stderr },
      { code: 43, stdout: "out hello", stderr: "to stderr" },
    );
    const random = await run("exec", id, "--", "sh", "-c", "head -c 3000000 /dev/urandom | tee noise");
    const sum = await text("exec", id, "--", "sha256sum", "noise");
    assert.equal(sum.split(" ")[0], createHash("sha256").update(random.stdout).digest("hex"));
    assert.equal((await run("exec", id, "--", "sh", "-c", "kill -9 $$")).code, 137);
    assert.equal(
      await text("exec", id, "--cwd", "/tmp", "--env", "A=1", "--", "sh", "-c", "echo ${PWD##*/} $A"),
      "tmp 1\n",
    );
    const before = server.sandboxes.get(id).record.endsAtMs;
    assert.equal(await text("exec", id, "--", "printf", "%s", "$GREETING; |"), "$GREETING; |");
    assert.equal(server.sandboxes.get(id).record.endsAtMs, before);
  });

  it("give a command what it reads itself, and then the end of that", async () => {
    const pipe = (...args: readonly string[]) => startCoppice(["exec", ...args], environment(), "pipe");
    const input = randomBytes(3_000_000);
    const summed = pipe(id, "--", "sha256sum");
    summed.child.stdin?.end(input);
    const { code, stdout } = await summed.end;
    assert.equal(code, 0);
    assert.equal(stdout.toString().split(" ")[0], createHash("sha256").update(input).digest("hex"));
    // A command that does not read its stdin ends with its own exit code, although the other end stays open.
    const short = pipe(id, "--", "sh", "-c", "read line; echo got $line; exit 7");
    short.child.stdin?.write("one\ntwo\n");
    const ended = await short.end;
    assert.deepEqual([ended.code, ended.stdout.toString(), ended.stderr], [7, "got one\n", ""]);
    const without = pipe("--no-stdin", id, "--", "cat");
    assert.equal((await without.end).code, 0);
    for (const { child } of [short, without]) child.stdin?.destroy();
  });

  it("print output while the command runs; the first interrupt ends the command", async () => {
    const { child, printed, end } = start("exec", id, "--", "sh", "-c", "echo ready; exec sleep 1000");
    await eventually("the first line", () => printed() === "ready\n");
    child.kill("SIGINT");
    assert.equal((await end).code, 143);
  });

  it("end quietly when its reader has gone", async () => {
    const { child, printed, end } = start("exec", id, "--", "yes");
    await eventually("some output", () => printed() !== "");
    child.stdout?.destroy();
    const { code, stderr } = await end;
    assert.deepEqual({ code, stderr }, { code: 141, stderr: "" });
  });

  it("print the log of a sandbox, page by page, follow it, and have it after the end", async () => {
    const logged = (await text("create")).trim();
    const lines = 2_500;
    // Spread over several milliseconds: of one millisecond the API returns at most a page.
    const script = `for part in 1 2 3 4 5; do seq ${lines / 5}; sleep 0.02; done; echo problem >&2`;
    await run("exec", logged, "--", "sh", "-c", script);
    const { code, stdout, stderr } = await run("logs", logged);
    assert.equal(code, 0);
    const asked = stdout.toString().trimEnd().split("\n");
    // The verb reports lines that the API left out.
    if (!stderr.includes("are left out")) assert.equal(asked.length, lines);
    assert.match(stderr, /problem\n$/);
    const follower = start("logs", logged, "--follow", "--json");
    await run("exec", logged, "--", "echo", "later");
    await eventually("the later line", () => follower.printed().includes('"message":"later"'), 10_000);
    follower.child.kill();
    await follower.end;
    await text("kill", logged);
    assert.equal((await run("logs", logged)).code, 0);
  });

  it("show control characters of a log to a terminal in readable form, and as they are to anybody else", async () => {
    const logged = (await text("create")).trim();
    await run("exec", logged, "--", "printf", "\\033]0;title\\007\\302\\233x\\ta\\rb\\n");
    const plain = "\u001b]0;title\u0007\u009bx\ta\rb\n";
    assert.equal(await text("logs", logged), plain);
    const shown = async (...options: readonly string[]): Promise<string> => {
      const { stdout } = await startCoppiceInTerminal(["logs", logged, ...options], environment()).end;
      return stdout.toString().replaceAll("\r\n", "\n");
    };
    assert.equal(await shown(), "\\x1b]0;title\\x07\\x9bx\ta\\x0db\n");
    assert.equal(await shown("--raw"), plain);
    assert.doesNotMatch(await shown("--json"), /[\u0080-\u009f]/);
    await text("kill", logged);
  });

  it("give a program a terminal: keys, its size and its exit code", async () => {
    const inside = ["exec", "-it", id, "--", "sh", "-c"];
    const script =
      "trap 'echo asked' INT; trap 'stty size' WINCH; echo up; while :; do read line; [ $line = q ] && exit 9; done";
    const { child, printed, end } = startCoppiceInTerminal([...inside, script], environment(), "pipe");
    await eventually("the program", () => printed().includes("up"));
    child.stdin?.write("\u0003");
    await eventually("its handler of Ctrl-C", () => printed().includes("asked"));
    child.kill("SIGUSR1");
    await eventually("its new size", () => printed().includes("33 101"));
    child.stdin?.write("q\r");
    assert.equal((await end).code, 9);
    child.stdin?.destroy();
    const shell = startCoppiceInTerminal(["shell", id], environment(), "pipe");
    shell.child.stdin?.write("tty && exit 3\r");
    assert.equal((await shell.end).code, 3);
    assert.match(shell.printed(), /\/dev\/pts\/\d/);
    shell.child.stdin?.destroy();
  });

  it("copy files and folders both ways, with their names and rights", async () => {
    const source = join(folder, "source");
    await mkdir(join(source, "sub"), { recursive: true });
    await writeFile(join(source, "sub", "noise"), randomBytes(300_000), { mode: 0o755 });
    await symlink("/etc/passwd", join(source, "link"));
    await text("cp", source, `${id}:`);
    await text("cp", join(source, "sub/noise"), `${id}:made/renamed`);
    assert.equal(
      await text(
        "exec",
        id,
        "--no-stdin",
        "--",
        "sh",
        "-c",
        "cmp source/sub/noise made/renamed && readlink source/link",
      ),
      "/etc/passwd\n",
    );
    const back = await run("cp", `${id}:source`, join(folder, "back"));
    assert.deepEqual([back.code, back.stderr], [0, "coppice: 1 links and special files were left out\n"]);
    await text("cp", `${id}:made/renamed`, folder);
    const noise = await readFile(join(source, "sub/noise"));
    for (const copy of ["back/sub/noise", "renamed"]) {
      assert.ok(noise.equals(await readFile(join(folder, copy))), copy);
      assert.equal((await stat(join(folder, copy))).mode & 0o111, 0o111 & ~process.umask());
    }
    const missing = await run("cp", `${id}:nothing`, folder);
    assert.equal(missing.code, 1);
    assert.match(missing.stderr, /nothing/);
    assert.equal((await run("cp", "a", "b")).code, 64);
  });

  it("forward a port for any protocol, and tell the URL of one", async () => {
    const echo =
      "import socket;s=socket.create_server(('127.0.0.1',0));print(s.getsockname()[1],flush=True)\nwhile 1:\n c,_=s.accept()\n while d:=c.recv(9999): c.sendall(d)\n c.close()";
    const program = start("exec", id, "--no-stdin", "--", PYTHON, "-c", echo);
    await eventually("the program", () => /^\d+\n$/.test(program.printed()));
    const forward = start("port-forward", id, `0:${program.printed().trim()}`);
    await eventually("the port", () => forward.printed().endsWith("\n"));
    const [, port = ""] = /^127\.0\.0\.1:(\d+) is port /.exec(forward.printed()) ?? [];
    const sent = randomBytes(100_000);
    const socket = connect(Number(port), "127.0.0.1");
    let received = Buffer.alloc(0);
    socket.on("data", (chunk: Buffer) => (received = Buffer.concat([received, chunk])));
    socket.write(sent);
    await eventually("the echo", () => received.length === sent.length, 10_000);
    assert.ok(received.equals(sent));
    socket.destroy();
    forward.child.kill("SIGINT");
    assert.equal((await forward.end).code, 0);
    program.child.kill("SIGINT");
    await program.end;
    assert.equal(await text("open", id, "8080"), `http://8080-${id}.sandboxes.localhost:3000/\n`);
  });

  it("run code in a sandbox of its own, save its plots, and remove it", async () => {
    const output = join(folder, "plots");
    const code = "import matplotlib.pyplot as p\np.plot([1, 2])\np.show()\nprint('drawn')\n6 * 7";
    const drawn = await run("run", "-c", code, "--output", output);
    assert.equal(drawn.code, 0, drawn.stderr);
    assert.match(drawn.stdout.toString(), /^drawn\n[^]*42\n$/);
    assert.equal(drawn.stderr, `saved ${join(output, "plot-1.png")}\n`);
    assert.equal((await readFile(join(output, "plot-1.png"))).subarray(1, 4).toString(), "PNG");
    const file = join(folder, "fails.py");
    await writeFile(file, "raise ValueError('no luck')");
    const failed = await run("run", file);
    assert.equal(failed.code, 1);
    assert.match(failed.stderr, /ValueError: no luck/);
    const told = JSON.parse((await run("run", "-c", "1 + 1", "--json")).stdout.toString()) as {
      readonly results: readonly { readonly text: string }[];
    };
    assert.equal(told.results[0]?.text, "2");
    const long = start("run", "-c", "import time; print('up', flush=True); time.sleep(1000)");
    await eventually("the code", () => long.printed().includes("up"), 20_000);
    long.child.kill("SIGINT");
    assert.equal((await long.end).code, 130);
    assert.equal(await text("ps", "--fields", "id"), `${id}\n`);
  });

  it("tell what sandboxes use, and why one ended", async () => {
    const ended = (await text("create")).trim();
    await eventually("a measurement", async () => / of \d+ MiB\t/.test(await text("top", ended)), 20_000);
    await text("kill", ended);
    const told = await text("why", ended);
    assert.match(
      told,
      /it was killed at \d{4}-[^]*\tsandbox\.lifecycle\.created\t[^]*\tsandbox\.lifecycle\.killed\t/,
    );
    assert.match(await text("why", id), /^running since /);
    assert.equal((await run("why", "nosuchsandbox")).code, 2);
  });

  it("keep servers and their keys for this user alone, and send a key to no other server", async () => {
    const unset = { XDG_CONFIG_HOME: join(folder, "contexts") };
    const context = async (...args: readonly string[]) => {
      const { child, end } = startCoppice(args, unset, "pipe");
      child.stdin?.end(`${API_KEY}\n`);
      const { code, stdout, stderr } = await end;
      return { code, stdout: stdout.toString(), stderr };
    };
    assert.deepEqual(await context("context", "add", "test", "--server", server.url, "--key-stdin"), {
      code: 0,
      stdout: "",
      stderr: "",
    });
    const path = join(unset.XDG_CONFIG_HOME, "coppice");
    assert.equal((await stat(join(path, "contexts.json"))).mode & 0o777, 0o600);
    assert.equal((await stat(path)).mode & 0o777, 0o700);
    await context("context", "add", "other", "--server", "http://127.0.0.1:9", "--key-stdin");
    assert.equal(
      (await context("context", "list")).stdout,
      `test\t${server.url}\t*\nother\thttp://127.0.0.1:9\t\n`,
    );
    assert.ok(!(await context("context", "list", "--json")).stdout.includes(API_KEY));
    assert.equal((await context("ps", "--fields", "id")).stdout, `${id}\n`);
    assert.equal((await context("ps", "--url", server.url)).code, 1);
    assert.equal((await context("context", "use", "other")).code, 0);
    assert.match((await context("ps")).stderr, /cannot reach/);
    assert.equal((await context("ps", "--context", "test", "--fields", "id")).stdout, `${id}\n`);
    assert.equal((await context("context", "remove", "other")).code, 0);
    assert.match((await context("ps", "--context", "other")).stderr, /there is no context 'other'/);
    assert.deepEqual(await readdir(path), ["contexts.json"]);
  });

  it("complete verbs and options in a shell", async () => {
    const script = (await text("completion", "bash")).replaceAll(
      "coppice __complete",
      `${process.execPath} ${COPPICE} __complete`,
    );
    const ask = `${script}\nCOMP_WORDS=(coppice ps --f) COMP_CWORD=2; _coppice; echo "\${COMPREPLY[*]}"\nCOMP_WORDS=(coppice context re) COMP_CWORD=2; _coppice; echo "\${COMPREPLY[*]}"`;
    const { stdout } = await promisify(execFile)("bash", ["-c", ask]);
    assert.equal(stdout, "--fields\nremove\n");
    for (const shell of ["zsh", "fish"]) assert.match(await text("completion", shell), /coppice __complete/);
  });

  it("have an exit code for each way to fail, and say what went wrong", async () => {
    const port = await unusedPort();
    const failures: readonly (readonly [readonly string[], number, RegExp])[] = [
      [["kill", "nosuchsandbox"], 2, /^coppice: there is no sandbox 'nosuchsandbox'\n$/],
      [["logs", "nosuchsandbox"], 2, /^coppice: .*not found/],
      [["exec", "nosuchsandbox", "--", "true"], 125, /^coppice: .*not found/],
      [["exec", id, "--", "no-such-program"], 127, /^no-such-program: command not found/],
      [["create", "--template", "nonesuch"], 1, /^coppice: 404: template 'nonesuch' not found/],
      [["pause", id], 1, /does not support pausing/],
      [["snapshot", id], 1, /does not support snapshots/],
      [["fork", id, "--count", "2"], 1, /does not support snapshots/],
      [["resume", "nosuchsandbox"], 2, /not found/],
      [["ps", "--url", `http://127.0.0.1:${port}`], 1, /^coppice: cannot reach the server: .*ECONNREFUSED/],
      [["ps", "--url", "no url"], 1, /^coppice: /],
      [
        ["create", "--ttl", "soon"],
        64,
        /'--ttl <time>' argument 'soon' is invalid\. It is a length of time, as 5m/,
      ],
      [["create", "--env", "X"], 64, /It is name=value/],
      [["exec", id], 64, /missing required argument 'program'/],
      [["exec", id, "--loud", "--", "true"], 64, /--loud/],
      [["ps", "--state", "dead"], 64, /Allowed choices are running, paused/],
      [["ps", "--fields", "secret"], 64, /--fields has id, /],
      [["port-forward", id, "1:2:3"], 64, /It is a port/],
      [["kill"], 64, /missing required argument 'id'/],
      [["context", "use", "nonesuch"], 64, /there is no context 'nonesuch'/],
      [["kil", id], 64, /Did you mean kill\?/],
    ];
    const ends = await Promise.all(failures.map(([args]) => run(...args)));
    for (const [index, [args, code, message]] of failures.entries()) {
      assert.equal(ends[index]?.code, code, `${args.join(" ")}: ${ends[index]?.stderr}`);
      assert.match(ends[index]?.stderr ?? "", message, args.join(" "));
    }
    const refused = await startCoppice(["ps"], { ...environment(), E2B_API_KEY: "e2b_ffff" }).end;
    assert.deepEqual([refused.code, refused.stderr.includes("e2b_ffff")], [1, false]);
    assert.match(
      await text("exec", "--help"),
      /^Usage: coppice exec \[options\] <id> -- [^]*COPPICE_EXEC_CWD[^]*Examples:/,
    );
    assert.match(await text("exec", id, "--", "echo", "--help"), /^Usage: echo/);
  });
});

describe("verbs that change a sandbox's state", { skip: missingForNamespaces(), timeout: 240_000 }, () => {
  let server: TestServer;

  before(async () => {
    server = await startFullServer({ backend: "linux-namespaces" });
  });
  after(() => server.stop());

  it("pause and resume it, make a snapshot and copies of it, and end all", async () => {
    const environment = { E2B_API_URL: server.url, E2B_API_KEY: API_KEY };
    const text = async (...args: readonly string[]): Promise<string> => {
      const { code, stdout, stderr } = await startCoppice(args, environment).end;
      assert.deepEqual({ code, stderr }, { code: 0, stderr: "" }, args.join(" "));
      return stdout.toString().trimEnd();
    };
    const id = await text("create", "--ttl", "10m");
    await text("exec", id, "--", "sh", "-c", "echo kept > file");
    await text("pause", id);
    assert.equal(await text("ps", "--fields", "id,state"), `${id}\tpaused`);
    await text("resume", id);
    assert.equal(await text("ps", "--fields", "id,state"), `${id}\trunning`);
    await text("pause", id);
    assert.equal(await text("exec", id, "--", "cat", "file"), "kept", "a use resumes it");
    const ofSnapshot = await text("create", "--template", await text("snapshot", id, "--name", "saved"));
    const copies = (await text("fork", id, "--count", "2")).split("\n");
    assert.equal(copies.length, 2);
    for (const each of [ofSnapshot, ...copies])
      assert.equal(await text("exec", each, "--", "cat", "file"), "kept");
    await text("kill", id, ofSnapshot, ...copies);
    assert.equal(await text("ps"), "");
  });
});

async function unusedPort(): Promise<number> {
  const listener = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => listener.once("listening", resolve));
  const { port } = listener.address() as AddressInfo;
  await new Promise((resolve) => listener.close(resolve));
  return port;
}
