import assert from "node:assert/strict";
import { it } from "node:test";
import { SandboxError } from "../kernel/errors.js";
import type { ErrorCode } from "../kernel/reasons.js";
import type { PackSource, Sandbox, SandboxImage } from "../sandbox/contract/backend.js";
import type { Command, Process } from "../sandbox/contract/process.js";
import { entriesOfTar } from "./tar-archive.js";
import { MemoryBackend, type MemoryBackendOptions, type MemorySandbox } from "./memory-backend.js";

async function makeSandbox(options: MemoryBackendOptions): Promise<[MemorySandbox, MemoryBackend]> {
  const backend = new MemoryBackend(options);
  const spec = { id: "one", template: "base", limits: {}, allowInternetAccess: true };
  await backend.provision(spec, new AbortController().signal);
  const sandbox = backend.sandboxes.get("one");
  assert.ok(sandbox !== undefined);
  return [sandbox, backend];
}

function command(path: string, options: Partial<Command> = {}): Command {
  return { path, args: [], env: {}, ...options };
}

async function outputOf(process: Process): Promise<Record<string, string>> {
  const text: Record<string, string> = {};
  for await (const { stream, data } of process.output) {
    text[stream] = (text[stream] ?? "") + Buffer.from(data).toString();
  }
  return text;
}

function failsWith(code: ErrorCode): (error: unknown) => boolean {
  return (error) => error instanceof SandboxError && error.code === code;
}

async function* bytes(...parts: string[]): AsyncIterable<Uint8Array> {
  for (const part of parts) yield Buffer.from(part);
}

it("scripted programs read, write, trap and end as processes do", async () => {
  const [sandbox, backend] = await makeSandbox({
    programs: {
      async cat({ stdin, stdout, stderr, args, env, cwd, user }) {
        await stderr(`${args.join()} ${env["A"]} ${cwd} ${user.name}`);
        for await (const data of stdin) await stdout(data);
        return 43;
      },
      stubborn({ trap, killed, stdout }) {
        return new Promise((resolve) => {
          trap("SIGTERM", () => void stdout("no"));
          killed.addEventListener("abort", () => resolve(7));
        });
      },
      broken() {
        throw new Error("oops");
      },
      async flood({ stdout, terminal }) {
        await stdout(`${terminal?.columns}`);
        for (;;) await stdout(Buffer.alloc(1000));
      },
    },
  });
  const cat = await sandbox.spawn(command("/bin/cat", { args: ["x", "y"], env: { A: "1" }, user: "root" }));
  await cat.write(Buffer.from("hello "));
  await cat.write(Buffer.from("there"));
  await cat.closeInput();
  await cat.closeInput();
  assert.deepEqual(await outputOf(cat), { stderr: "x,y 1 /root root", stdout: "hello there" });
  assert.deepEqual(await cat.exit, { code: 43 });
  await assert.rejects(cat.write(Buffer.from("x")), failsWith("failed_precondition"));
  await assert.rejects(cat.kill("SIGTERM"), failsWith("not_found"));

  const stubborn = await sandbox.spawn(command("stubborn"));
  await new Promise((resolve) => setImmediate(resolve));
  await stubborn.kill("SIGTERM");
  assert.equal(backend.alive.processes, 1);
  await stubborn.kill("SIGKILL");
  assert.deepEqual(await outputOf(stubborn), { stdout: "no" });
  assert.deepEqual(await stubborn.exit, { signal: "SIGKILL" });

  const broken = await sandbox.spawn(command("broken"));
  assert.deepEqual(await outputOf(broken), { stderr: "Error: oops\n" });
  assert.deepEqual(await broken.exit, { code: 1 });
  assert.deepEqual(await (await sandbox.spawn(command("toString"))).exit, { code: 127 });

  const flood = await sandbox.spawn(command("flood", { terminal: { columns: 80, rows: 24 } }));
  let seenBytes = 0;
  for await (const { stream, data } of flood.output) {
    assert.equal(stream, "terminal");
    seenBytes += data.length;
    if (seenBytes > 200_000) break;
  }
  await flood.kill("SIGINT");
  assert.deepEqual(await flood.exit, { signal: "SIGINT" });

  const silent = await sandbox.spawn(command("cat", { input: "none" }));
  await assert.rejects(silent.write(Buffer.from("x")), failsWith("failed_precondition"));
  await assert.rejects(silent.resize({ columns: 1, rows: 1 }), failsWith("failed_precondition"));
  assert.deepEqual(await silent.exit, { code: 43 });
  await assert.rejects(sandbox.spawn(command("cat", { cwd: "/nope" })), failsWith("invalid_argument"));
  await assert.rejects(sandbox.spawn(command("cat", { user: "nobody" })), failsWith("unauthenticated"));
  assert.equal(backend.alive.processes, 0);
});

it("files in memory follow links, keep owners and never reach outside", async () => {
  const [{ files }, backend] = await makeSandbox({});
  await files.write("/home/user/a/b.txt", bytes("hello ", "there"), { user: "root", metadata: { k: "v" } });
  const info = await files.stat("/home/user/a/b.txt");
  assert.deepEqual(
    [info.kind, info.sizeBytes, info.mode, info.rawMode, info.owner, info.metadata],
    ["file", 11, 0o644, 0o100644, "root", { k: "v" }],
  );
  assert.equal((await files.stat("/home/user/a")).owner, "root");
  {
    await using file = await files.read("/home/user/a/b.txt");
    await files.write("/home/user/a/b.txt", bytes("new"));
    const read: Uint8Array[] = [];
    for await (const part of file.content({ offset: 6, length: 3 })) read.push(part);
    assert.equal(Buffer.concat(read).toString(), "the");
    assert.equal(backend.alive.openFiles, 1);
  }
  assert.equal(backend.alive.openFiles, 0);

  async function* failing(): AsyncIterable<Uint8Array> {
    yield Buffer.from("half");
    throw new Error("gone");
  }
  await assert.rejects(files.write("/home/user/a/b.txt", failing()), /gone/);
  assert.equal((await files.stat("/home/user/a/b.txt")).sizeBytes, 3);

  files.link("/home/user/up", "../../../../home/user/a");
  files.link("/home/user/loop", "loop");
  files.link("/home/user/dangling", "/nowhere/x");
  assert.equal((await files.stat("/home/user/up/b.txt")).kind, "file");
  const up = await files.stat("/home/user/up");
  assert.deepEqual([up.kind, up.symlinkTarget], ["directory", "/home/user/a"]);
  const dangling = await files.stat("/home/user/dangling");
  assert.deepEqual(
    [dangling.kind, dangling.symlinkTarget, dangling.mode],
    ["unknown", "/home/user/dangling", 0],
  );
  await assert.rejects(files.read("/home/user/loop"), failsWith("failed_precondition"));
  await assert.rejects(files.stat("/home/user/a/b.txt/c"), failsWith("invalid_argument"));

  const names = async (path: string, depth: number): Promise<string[]> => {
    const found: string[] = [];
    for await (const entry of files.list(path, depth)) found.push(entry.path);
    return found;
  };
  assert.deepEqual(await names("/home/user", 1), [
    "/home/user/a",
    "/home/user/dangling",
    "/home/user/loop",
    "/home/user/up",
  ]);
  assert.deepEqual(await names("/home/user/up", 5), ["/home/user/up/b.txt"]);
  await assert.rejects(names("/home/user/a/b.txt", 1), failsWith("invalid_argument"));
  await assert.rejects(names("/nope", 1), failsWith("not_found"));

  await files.makeDir("/data/x/y");
  await assert.rejects(files.makeDir("/data/x"), failsWith("already_exists"));
  await assert.rejects(files.makeDir("/home/user/a/b.txt"), failsWith("invalid_argument"));
  await files.move("/home/user/a/b.txt", "/data/new/b.txt");
  assert.deepEqual(await names("/data", 2), ["/data/new", "/data/new/b.txt", "/data/x", "/data/x/y"]);
  await assert.rejects(files.move("/data", "/data/x/z"), failsWith("invalid_argument"));
  await assert.rejects(files.move("/nope", "/data/z"), failsWith("not_found"));
  await files.remove("/home/user/up");
  await files.remove("/data/x");
  await files.remove("/data/x");
  assert.deepEqual(await names("/data", 9), ["/data/new", "/data/new/b.txt"]);
  assert.equal((await files.stat("/home/user/a")).kind, "directory");
});

it("ports can be dialled, and open streams are counted until the sandbox is gone", async () => {
  const [sandbox, backend] = await makeSandbox({
    ports: { 80: (connection) => void connection.pipe(connection) },
    programs: {
      sleep: ({ killed }) => new Promise((resolve) => killed.addEventListener("abort", () => resolve())),
    },
  });
  const signal = new AbortController().signal;
  await assert.rejects(sandbox.dial(81, signal), failsWith("failed_precondition"));
  const connection = await sandbox.dial(80, signal);
  const echoed = new Promise((resolve) => connection.once("data", (data) => resolve(String(data))));
  connection.write("hello");
  assert.equal(await echoed, "hello");
  const sleep = await sandbox.spawn(command("sleep"));
  assert.deepEqual(backend.alive, { sandboxes: 1, processes: 1, connections: 1, openFiles: 0 });
  const closed = new Promise((resolve) => connection.once("close", resolve));
  await sandbox.destroy();
  await sandbox.destroy();
  await closed;
  assert.deepEqual(await sleep.exit, { signal: "SIGKILL" });
  assert.deepEqual(backend.alive, { sandboxes: 0, processes: 0, connections: 0, openFiles: 0 });
  await assert.rejects(sandbox.spawn(command("sleep")), failsWith("unavailable"));
});

it("a sandbox in memory begins with an image, and becomes one", async () => {
  const backend = new MemoryBackend({
    snapshots: {},
    images: {
      onUnpack: async (_id, { layout }, files) => void (await files.write("/etc/from", bytes(layout))),
    },
  });
  const { signal } = new AbortController();
  assert.ok(backend.images);
  const source = { layout: "/layout", reference: "image", maxBytes: 1, maxEntries: 1 };
  await backend.images.unpack("lower", source, signal);
  const provision = async (id: string, image: SandboxImage): Promise<Sandbox> =>
    backend.provision({ id, template: "built", image, limits: {}, allowInternetAccess: true }, signal);
  const first = await provision("first", { id: "lower", user: "builder" });
  assert.equal((await first.user()).name, "builder");
  await first.files.write("/home/user/own", bytes("own"));
  const packed = async (source: PackSource): Promise<readonly string[]> => {
    const archive = await Array.fromAsync(backend.images?.pack?.(source, signal) ?? []);
    return [...entriesOfTar(Buffer.concat(archive)).keys()].filter((name) => !name.endsWith("/"));
  };
  await first.snapshots?.take("shot");
  assert.deepEqual(await packed({ image: "lower" }), ["etc/from"]);
  assert.deepEqual(await packed({ image: "lower", snapshot: "shot" }), ["etc/from", "home/user/own"]);
  await assert.rejects(packed({ image: "other" }), failsWith("not_found"));
  await first.committing?.commit("upper");
  await assert.rejects(first.spawn(command("true")), failsWith("unavailable"));
  await first.destroy();
  await backend.images.remove("lower");
  assert.deepEqual(await backend.images.list(), ["upper"]);
  const second = await provision("second", { id: "upper", user: "user", workdir: "/etc" });
  assert.equal((await second.user("root")).workdir, "/etc");
  assert.equal((await second.files.stat("/etc/from")).sizeBytes, 7);
  assert.equal((await second.files.stat("/home/user/own")).sizeBytes, 3);
  await assert.rejects(provision("third", { id: "lower", user: "user" }), failsWith("not_found"));
});
