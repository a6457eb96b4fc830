import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, describe, it } from "node:test";
import { eventually, type TestServer } from "@coppice/core/testing";
import { API_KEY } from "../../harness/server/api-key.js";
import { startCoppice, startCoppiceInTerminal } from "../../harness/server/coppice-command.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

describe("coppice sandbox", { timeout: 240_000 }, () => {
  let server: TestServer;
  let id: string;

  before(async () => {
    server = await startFullServer({ server: { sandboxes: { maximum: 110 } } });
    id = (await text("create", "--ttl", "10m", "--env", "GREETING=hello", "--metadata", "team=a=b")).trim();
  });
  after(() => server.stop());

  const start = (...args: readonly string[]) =>
    startCoppice(["sandbox", ...args], { E2B_API_URL: server.url, E2B_API_KEY: API_KEY });
  const run = (...args: readonly string[]) => start(...args).end;
  const text = async (...args: readonly string[]): Promise<string> => {
    const { code, stdout, stderr } = await run(...args);
    assert.deepEqual({ code, stderr }, { code: 0, stderr: "" });
    return stdout.toString();
  };

  it("makes a sandbox and prints its id, or all that the server says of it", async () => {
    assert.match(id, /^i[a-z0-9]{15,30}$/);
    const record = server.sandboxes.get(id).record;
    assert.equal(record.timeoutMs, 600_000);
    assert.deepEqual(record.metadata, { team: "a=b" });
    const made = JSON.parse(await text("create", "--template", "base", "--json")) as {
      readonly sandboxID: string;
    };
    assert.equal(server.sandboxes.get(made.sandboxID).record.template, "base");
    await text("kill", made.sandboxID);
  });

  it("lists every page of sandboxes in columns, or as JSON", async () => {
    const record = server.sandboxes.get(id).record;
    const startedAt = new Date(record.startedAtMs).toISOString();
    const endAt = new Date(record.endsAtMs ?? 0).toISOString();
    assert.equal(await text("list"), `${[id, "base", "running", startedAt, endAt].join("\t")}\n`);
    const environment = { E2B_API_URL: server.url, E2B_API_KEY: API_KEY };
    const shown = await startCoppiceInTerminal(["sandbox", "list"], environment).end;
    assert.match(shown.stdout.toString(), /^ID +TEMPLATE +STATE +STARTED +END\r\ni\w+ +base +running /);
    const wanted = { template: "base", timeoutMs: 600_000, secure: true };
    const more = await Promise.all(Array.from({ length: 100 }, () => server.sandboxes.create(wanted)));
    const listed = JSON.parse(await text("list", "--json", "--state", "running")) as readonly unknown[];
    assert.equal(listed.length, 101);
    await Promise.all(more.map((sandbox) => server.sandboxes.kill(sandbox.record.id)));
    assert.equal(await text("list", "--state", "paused"), "");
  });

  it("passes on a command's output byte by byte and ends as it did", async () => {
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
    const events = (await text("exec", id, "--json", "--", "echo", "--help")).trim().split("\n");
    assert.deepEqual(
      events.map((line) => Object.keys((JSON.parse(line) as { readonly event: object }).event)),
      [["start"], ["data"], ["end"]],
    );
  });

  it("gives a command what it reads itself, and then the end of that", async () => {
    const environment = { E2B_API_URL: server.url, E2B_API_KEY: API_KEY };
    const pipe = (...args: readonly string[]) =>
      startCoppice(["sandbox", "exec", ...args], environment, "pipe");
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
    const without = pipe(id, "--no-stdin", "--", "cat");
    assert.equal((await without.end).code, 0);
    for (const { child } of [short, without]) child.stdin?.destroy();
  });

  it("prints output while the command runs; the first interrupt ends the command", async () => {
    const { child, printed, end } = start("exec", id, "--", "sh", "-c", "echo ready; exec sleep 1000");
    await eventually("the first line", () => printed() === "ready\n");
    child.kill("SIGINT");
    assert.equal((await end).code, 143);
  });

  it("ends quietly when its reader has gone", async () => {
    const { child, printed, end } = start("exec", id, "--", "yes");
    await eventually("some output", () => printed() !== "");
    child.stdout?.destroy();
    const { code, stderr } = await end;
    assert.deepEqual({ code, stderr }, { code: 141, stderr: "" });
  });

  it("prints the log of a sandbox, page by page, follows it, and has it after the end", async () => {
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

  it("shows control characters of a log to a terminal in readable form, and as they are to anybody else", async () => {
    const logged = (await text("create")).trim();
    await run("exec", logged, "--", "printf", "\\033]0;title\\007\\302\\233x\\ta\\rb\\n");
    const plain = "\u001b]0;title\u0007\u009bx\ta\rb\n";
    assert.equal(await text("logs", logged), plain);
    const environment = { E2B_API_URL: server.url, E2B_API_KEY: API_KEY };
    const shown = async (...options: readonly string[]): Promise<string> => {
      const { stdout } = await startCoppiceInTerminal(["sandbox", "logs", logged, ...options], environment)
        .end;
      return stdout.toString().replaceAll("\r\n", "\n");
    };
    assert.equal(await shown(), "\\x1b]0;title\\x07\\x9bx\ta\\x0db\n");
    assert.equal(await shown("--raw"), plain);
    assert.doesNotMatch(await shown("--json"), /[\u0080-\u009f]/);
    await text("kill", logged);
  });

  it("has an exit code for each way to fail, and says what went wrong", async () => {
    const port = await unusedPort();
    const failures: readonly (readonly [readonly string[], number, RegExp])[] = [
      [["kill", "nosuchsandbox"], 2, /^coppice: 404: /],
      [["logs", "nosuchsandbox"], 2, /^coppice: 404: /],
      [["exec", "nosuchsandbox", "--", "true"], 125, /^coppice: 404: /],
      [["exec", id, "--", "no-such-program"], 127, /^no-such-program: command not found/],
      [["create", "--template", "nonesuch"], 1, /^coppice: 404: template 'nonesuch' not found/],
      [["list", "--key", "e2b_ffff"], 1, /^coppice: 401: /],
      [["list", "--url", `http://127.0.0.1:${port}`], 1, /^coppice: cannot reach http.*ECONNREFUSED/],
      [["list", "--url", "no url"], 1, /^coppice: cannot reach no url: Invalid URL/],
      [["create", "--ttl", "soon"], 64, /^coppice: --ttl is a length of time, as 5m\nusage:/],
      [["create", "--env", "X"], 64, /--env is name=value/],
      [["exec", id], 64, /name a sandbox and a program/],
      [["exec", id, "--loud", "--", "true"], 64, /--loud/],
      [["list", "--state", "dead"], 64, /--state is running or paused/],
      [["kill"], 64, /name a sandbox/],
      [["dance"], 64, /'sandbox' has no 'dance'/],
      [[], 64, /'sandbox' has no ''/],
    ];
    const ends = await Promise.all(failures.map(([args]) => run(...args)));
    for (const [index, [args, code, message]] of failures.entries()) {
      assert.equal(ends[index]?.code, code, `${args.join(" ")}: ${ends[index]?.stderr}`);
      assert.match(ends[index]?.stderr ?? "", message, args.join(" "));
    }
    assert.match(await text("--help"), /coppice sandbox exec <id>/);
    assert.match(
      await text("create", "--ttl", "5m", "--help"),
      /^usage:\n {2}coppice sandbox create \[--template/,
    );
    assert.match(await text("exec", id, "--", "echo", "--help"), /^Usage: echo/);
  });
});

async function unusedPort(): Promise<number> {
  const listener = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => listener.once("listening", resolve));
  const { port } = listener.address() as AddressInfo;
  await new Promise((resolve) => listener.close(resolve));
  return port;
}
