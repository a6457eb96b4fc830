import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import {
  chmod,
  link,
  mkdir,
  mkdtemp,
  readFile,
  readdir,
  rm,
  stat,
  symlink,
  writeFile,
} from "node:fs/promises";
import { type Server, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, beforeEach, describe, it } from "node:test";
import { setImmediate as nextTurn } from "node:timers/promises";
import { SandboxError } from "@coppice/core";
import type { FileInfo } from "@coppice/core/backend";
import type { AgentConnection } from "./agent-connection.js";
import { startHostAgent } from "./start-host-agent.js";
import { withoutBinary, withoutRoot } from "./testing/agent-kinds.js";
import { type ListeningAgent, startListeningAgent } from "./testing/listening-agent.js";
import { mount, withoutMounts } from "./testing/mount.js";
import { shell } from "./testing/run.js";

const MEBIBYTE = 2 ** 20;

async function* chunked(...chunks: readonly (string | Uint8Array)[]): AsyncGenerator<Uint8Array> {
  for (const chunk of chunks) {
    const bytes = Buffer.from(chunk);
    for (let start = 0; start < Math.max(bytes.byteLength, 1); start += 50_000)
      yield bytes.subarray(start, start + 50_000);
  }
}

async function* failing(sizeBytes: number): AsyncGenerator<Uint8Array> {
  yield* chunked(Buffer.alloc(sizeBytes));
  throw new Error("the source failed");
}

function refuses(promise: Promise<unknown>, code: string, message?: RegExp): Promise<void> {
  return assert.rejects(promise, (error) => {
    assert.ok(error instanceof SandboxError, String(error));
    assert.equal(error.code, code, error.message);
    if (message) assert.match(error.message, message);
    return true;
  });
}

function picked(info: FileInfo, expected: Partial<FileInfo>): void {
  const names = Object.keys(expected) as (keyof FileInfo)[];
  assert.deepEqual(Object.fromEntries(names.map((name) => [name, info[name]])), expected);
}

/** For an agent whose root is the host's, and for one confined to a directory. */
for (const confined of [false, true]) {
  describe(
    `files of ${confined ? "an agent confined beneath a directory" : "an agent"}`,
    { skip: withoutBinary },
    () => {
      let agent: AgentConnection;
      let listening: ListeningAgent | undefined;
      /** Path on the host. */
      let root: string;
      /** The same directory as the agent sees it. */
      let home: string;
      let outside: string;

      before(async () => {
        root = await mkdtemp(join(tmpdir(), "coppice-files-"));
        outside = await mkdtemp(join(tmpdir(), "coppice-outside-"));
        home = confined ? "/home" : join(root, "home");
        if (!confined) agent = await startHostAgent();
        else {
          listening = await startListeningAgent([], ["--root", root]);
          agent = await listening.connect();
        }
      });

      after(async () => {
        await agent.close();
        await listening?.[Symbol.asyncDispose]();
        await rm(root, { recursive: true, force: true });
        await rm(outside, { recursive: true, force: true });
      });

      beforeEach(async () => {
        await rm(join(root, "home"), { recursive: true, force: true });
        await mkdir(join(root, "home"));
        await writeFile(join(outside, "secret.txt"), "of the host");
      });

      const at = (name: string): string => `${home}/${name}`;
      const host = (name: string): string => join(root, "home", name);
      const write = (name: string, ...body: readonly (string | Uint8Array)[]): Promise<FileInfo> =>
        agent.files.write(at(name), chunked(...body));
      const read = async (name: string): Promise<Buffer> => {
        await using file = await agent.files.read(at(name));
        return Buffer.concat(await Array.fromAsync(file.content()));
      };
      const names = async (name: string, depth = 1): Promise<string[]> =>
        (await Array.fromAsync(agent.files.list(at(name), depth))).map((entry) =>
          entry.path.slice(home.length + 1),
        );

      it("report whether space or inodes are exhausted", { skip: withoutMounts }, async () => {
        const shortOf = (promise: Promise<unknown>, shortage: string) =>
          assert.rejects(promise, { code: "resource_exhausted", shortage });
        {
          await using _ = await mount("tmpfs", host(""), "nr_inodes=3");
          await write("1", "x");
          for (const body of ["", "x", Buffer.alloc(MEBIBYTE)]) await shortOf(write("a/b", body), "inodes");
          await agent.files.remove(at("a"));
          await write("2", "x");
          await shortOf(write("3", Buffer.alloc(MEBIBYTE)), "inodes");
          await shortOf(agent.files.makeDir(at("3")), "inodes");
          await shortOf(agent.files.move(at("1"), at("3/4")), "inodes");
          await write("1", "there already");
          await shortOf(write("1", Buffer.alloc(MEBIBYTE)), "inodes");
          assert.equal(String(await read("1")), "there already");
        }
        await using _ = await mount("tmpfs", host(""), "size=64k");
        for (const size of [100_000, MEBIBYTE]) await shortOf(write("1", Buffer.alloc(size)), "space");
        assert.deepEqual(await names(""), []);
        await write("old", "as it was");
        await shortOf(write("old", Buffer.alloc(100_000)), "space");
        assert.equal(String(await read("old")), "as it was");
      });

      it("are written and read, small and large, with missing parents", async () => {
        const info = await write("new/deep/small", "hello");
        picked(info, { name: "small", path: at("new/deep/small"), kind: "file", sizeBytes: 5, mode: 0o644 });
        assert.equal(await readFile(host("new/deep/small"), "utf8"), "hello");
        picked(await agent.files.stat(at("new/deep")), { kind: "directory", mode: 0o755 });
        await symlink("deep/small", host("new/link"));
        const linked = await write("new/link", "by the link");
        picked(linked, { path: at("new/link"), kind: "file", symlinkTarget: at("new/deep/small") });
        picked(linked, await agent.files.stat(at("new/link")));
        assert.equal(await readFile(host("new/deep/small"), "utf8"), "by the link");
        for (const sizeBytes of [0, 1, 131_072, 131_073, 16 * MEBIBYTE]) {
          const blob = randomBytes(sizeBytes);
          assert.equal((await write("blob", blob)).sizeBytes, sizeBytes);
          assert.ok((await read("blob")).equals(blob), `${sizeBytes} bytes differ`);
        }
        assert.deepEqual(await readdir(root), ["home"], "nothing temporary stays");
      });

      it("keep their mode, and get the requested one when they are new", async () => {
        for (const [name, body] of [
          ["small", Buffer.alloc(10)],
          ["large", Buffer.alloc(MEBIBYTE)],
        ] as const) {
          picked(await agent.files.write(at(name), chunked(body), { mode: 0o750 }), { mode: 0o750 });
          picked(await agent.files.write(at(name), chunked(body), { mode: 0o600 }), { mode: 0o750 });
          picked(await write(name, "1"), { mode: 0o750, sizeBytes: 1 });
        }
        picked(await agent.files.change(at("small"), { mode: 0o604 }), { mode: 0o604 });
      });

      it("belong to the named owner", { skip: withoutRoot }, async () => {
        await mkdir(join(root, "etc"), { recursive: true });
        await writeFile(join(root, "etc/passwd"), "daemon:x:1:1::/:/bin/sh\n");
        await writeFile(join(root, "etc/group"), "daemon:x:1:\n");
        for (const body of ["small", Buffer.alloc(MEBIBYTE)]) {
          const info = await agent.files.write(at("made/file"), chunked(body), { user: "daemon" });
          picked(info, { uid: 1, gid: 1, owner: "daemon", group: "daemon" });
          picked(await agent.files.stat(at("made")), { owner: "daemon" });
          await agent.files.remove(at("made"));
        }
        picked(await agent.files.makeDir(at("one/two"), { user: "daemon" }), { owner: "daemon" });
        picked(await agent.files.change(at("one"), { owner: { uid: 77, gid: 78 } }), {
          uid: 77,
          gid: 78,
          owner: "77",
          group: "78",
        });
        await refuses(agent.files.makeDir(at("x"), { user: "who" }), "unauthenticated");
      });

      it("appear atomically: a failing source leaves the old file, or none, and no parents", async () => {
        await write("old", "as it was");
        for (const sizeBytes of [10, MEBIBYTE]) {
          for (const name of ["old", "new", "missing/new"]) {
            await assert.rejects(agent.files.write(at(name), failing(sizeBytes)), /the source failed/);
          }
        }
        assert.equal((await read("old")).toString(), "as it was");
        assert.deepEqual(await names("."), ["./old"]);
        let seen = "";
        await agent.files.write(
          at("old"),
          (async function* () {
            yield* chunked(Buffer.alloc(MEBIBYTE));
            seen = (await read("old")).toString();
          })(),
        );
        assert.equal(seen, "as it was");
        const bodies = [10, 5_000, 100_000, 2 * MEBIBYTE].map((size, index) =>
          Buffer.alloc(size, 65 + index),
        );
        await Promise.all(bodies.map((body) => write("shared", body)));
        const found = await read("shared");
        assert.ok(
          bodies.some((body) => body.equals(found)),
          `a mixture of ${found.byteLength} bytes`,
        );
      });

      it("can be read in part, and closed early", async () => {
        await write("digits", "0123456789");
        for (const [options, expected] of [
          [{ offset: 3 }, "3456789"],
          [{ length: 4 }, "0123"],
          [{ offset: 8, length: 10 }, "89"],
          [{ offset: 99 }, ""],
          [{ length: 0 }, ""],
        ] as const) {
          await using file = await agent.files.read(at("digits"));
          assert.equal(Buffer.concat(await Array.fromAsync(file.content(options))).toString(), expected);
        }
        await write("large", Buffer.alloc(MEBIBYTE));
        await using file = await agent.files.read(at("large"));
        for await (const _ of file.content()) break;
      });

      it("are listed depth first, in the order of bytes, following only the root", async () => {
        execFileSync(
          "sh",
          [
            "-c",
            "mkdir -p t/b/c/d t/B; touch t/a t/b.txt t/b/z t/b/c/d/e t/Z t/é t/~; ln -s t up; ln -s . t/b/again",
          ],
          {
            cwd: join(root, "home"),
          },
        );
        assert.deepEqual(
          await names("t"),
          ["B", "Z", "a", "b", "b.txt", "~", "é"].map((name) => `t/${name}`),
        );
        assert.deepEqual(
          await names("t", 99),
          ["B", "Z", "a", "b", "b/again", "b/c", "b/c/d", "b/c/d/e", "b/z", "b.txt", "~", "é"].map(
            (name) => `t/${name}`,
          ),
        );
        assert.equal((await names("up", 2))[0], "up/B");
        await refuses(Array.fromAsync(agent.files.list(at("none"), 1)), "not_found");
        await refuses(Array.fromAsync(agent.files.list(at("t/a"), 1)), "invalid_argument");
        for await (const entry of agent.files.list(at("t"), 9)) {
          assert.equal(entry.name, "B");
          break;
        }
      });

      it("are listed by the thousands to a slow reader", async () => {
        await mkdir(host("many"));
        execFileSync("sh", ["-c", "seq -f '%05g' 20000 | xargs touch"], { cwd: host("many") });
        let count = 0;
        for await (const { name } of agent.files.list(at("many"), 1)) {
          assert.equal(name, String(++count).padStart(5, "0"));
          if (count % 1_000 === 0) await nextTurn();
        }
        assert.equal(count, 20_000);
      });

      it("tell where links lead", async () => {
        execFileSync(
          "sh",
          [
            "-c",
            "mkdir dir; echo hello > dir/file; chmod 600 dir/file; ln -s dir/file link; ln -s link again; ln -s nowhere dangling; ln -s loop loop",
          ],
          { cwd: join(root, "home") },
        );
        await symlink(at("dir/file"), host("absolute"));
        for (const name of ["link", "again", "absolute"]) {
          const info = await agent.files.stat(at(name));
          picked(info, { name, kind: "file", mode: 0o600, symlinkTarget: at("dir/file") });
          assert.equal(info.rawMode & 0o170000, 0o120000);
        }
        for (const name of ["dangling", "loop"]) {
          picked(await agent.files.stat(at(name)), { kind: "unknown", mode: 0, symlinkTarget: at(name) });
        }
        picked(await agent.files.stat(at("dir/file")), { symlinkTarget: undefined });
        await write("dangling", "made");
        assert.equal((await read("nowhere")).toString(), "made");
        await write("absolute", Buffer.alloc(MEBIBYTE));
        assert.equal((await stat(host("dir/file"))).size, MEBIBYTE);
        await refuses(write("loop", ""), "failed_precondition");
        await refuses(agent.files.stat(at("dir/file/below")), "not_found");
        await refuses(write("dir/file/below", ""), "invalid_argument", /path is a file: .*dir\/file$/);
      });

      it("carry metadata", async () => {
        const metadata = { key: "value", ünï: "✓", __proto__x: "" };
        assert.deepEqual(
          (await agent.files.write(at("file"), chunked("1"), { metadata })).metadata,
          metadata,
        );
        assert.deepEqual((await write("file", "2")).metadata, metadata, "other keys stay");
        assert.deepEqual((await write("file", Buffer.alloc(MEBIBYTE))).metadata, metadata);
        const large = await agent.files.write(at("file"), chunked(Buffer.alloc(MEBIBYTE)), {
          metadata: { other: "x" },
        });
        assert.deepEqual(large.metadata, { other: "x" });
        assert.deepEqual((await agent.files.write(at("file"), chunked("3"), { metadata: {} })).metadata, {});
        assert.deepEqual((await agent.files.change(at("file"), { metadata: { a: "b" } })).metadata, {
          a: "b",
        });
      });

      it("can be created as directories once, moved and replaced", async () => {
        picked(await agent.files.makeDir(at("one/two")), { name: "two", kind: "directory", mode: 0o755 });
        await refuses(agent.files.makeDir(at("one/two")), "already_exists");
        await write("file", "first");
        await refuses(agent.files.makeDir(at("file")), "invalid_argument");
        await refuses(agent.files.makeDir(at("file/below")), "invalid_argument");
        picked(await agent.files.move(at("file"), at("new/place")), { path: at("new/place"), sizeBytes: 5 });
        await write("other", "second");
        await agent.files.move(at("other"), at("new/place"));
        assert.equal((await read("new/place")).toString(), "second");
        await refuses(agent.files.move(at("none"), at("x/y")), "not_found");
        await refuses(agent.files.move(at("new"), at("new/below/itself")), "invalid_argument");
        assert.deepEqual(await names("."), ["./new", "./one"]);
      });

      it("are removed, including deep trees, but never the target of a link", async () => {
        execFileSync(
          "sh",
          [
            "-c",
            "mkdir -p kept tree/a/b/c; touch kept/file tree/a/file; ln -s ../kept tree/link; ln -s kept link",
          ],
          { cwd: join(root, "home") },
        );
        await agent.files.remove(at("tree"));
        await agent.files.remove(at("link"));
        await agent.files.remove(at("none/below"));
        await agent.files.remove(at("kept/file/below"));
        assert.deepEqual(await names(".", 9), ["./kept", "./kept/file"]);
        const deep =
          "import os\nos.mkdir('deep'); os.chdir('deep')\nfor i in range(1500):\n  open('f', 'w').close(); os.mkdir('d' * 50); os.chdir('d' * 50)\n";
        execFileSync("python3", ["-c", deep], { cwd: join(root, "home") });
        await agent.files.remove(at("deep"));
        await refuses(agent.files.remove("/"), "invalid_argument");
        assert.deepEqual(await names("."), ["./kept"]);
      });

      it("that are not regular are neither read nor written, without blocking", async () => {
        execFileSync("mkfifo", [host("pipe")]);
        await mkdir(host("dir"));
        const server: Server = createServer().listen(host("socket"));
        await once(server, "listening");
        for (const name of ["pipe", "dir", "socket"]) {
          await refuses(read(name), "invalid_argument");
          await refuses(write(name, "x"), "invalid_argument");
          await refuses(write(name, Buffer.alloc(MEBIBYTE)), "invalid_argument");
        }
        server.close();
        await refuses(read("none"), "not_found");
        await refuses(write("x".repeat(256), ""), "invalid_argument");
        await refuses(agent.files.stat(at("a\0b")), "invalid_argument");
        await refuses(agent.files.stat("relative"), "invalid_argument");
      });

      it("may have any name", async () => {
        const odd = [" ", "-rf", "line\nbreak", "ünï 🎉", "..x", "back\\slash", "x".repeat(255)];
        for (const name of odd) await write(`names/${name}`, name);
        const sorted = odd.toSorted((one, other) => Buffer.compare(Buffer.from(one), Buffer.from(other)));
        assert.deepEqual(
          await names("names"),
          sorted.map((name) => `names/${name}`),
        );
        for (const name of odd) assert.equal((await read(`names/${name}`)).toString(), name);
      });

      it("are written in place up to the server's limit, and replaced beyond it", async () => {
        const own = await startHostAgent({ writeInPlaceLimit: 1_000 });
        const overwritten = async (bytes: number): Promise<boolean> => {
          const before = (await stat(host("limited"))).ino;
          // The link keeps the old inode's number from being reused.
          await link(host("limited"), host(`held-${bytes}`));
          await own.files.write(host("limited"), chunked(Buffer.alloc(bytes)));
          return (await stat(host("limited"))).ino === before;
        };
        try {
          await write("limited", "old");
          assert.equal(await overwritten(1_000), true);
          assert.equal(await overwritten(1_001), false);
        } finally {
          await own.close();
        }
      });

      it(
        "obey the permissions of the acting account",
        { skip: withoutRoot || confined ? withoutRoot || "needs the accounts of the host" : false },
        async () => {
          const other = await startHostAgent({ fileActor: "nobody" });
          try {
            await chmod(root, 0o755);
            await write("private", "secret");
            await agent.files.change(at("private"), { mode: 0o600 });
            await refuses(other.files.read(at("private")), "permission_denied");
            await refuses(other.files.write(at("private"), chunked("x")), "permission_denied");
            await refuses(other.files.write(at("new"), chunked(Buffer.alloc(MEBIBYTE))), "permission_denied");
            await refuses(other.files.remove(at("private")), "permission_denied");
            await agent.files.makeDir(at("open"));
            await agent.files.change(at("open"), { mode: 0o777 });
            picked(await other.files.write(at("open/mine"), chunked("x")), { uid: 65_534 });
            picked(await other.files.write(at("open/large"), chunked(Buffer.alloc(MEBIBYTE))), {
              uid: 65_534,
            });
            assert.equal((await shell(other, "id -u")).stdout.toString(), "0\n");
          } finally {
            await other.close();
          }
        },
      );

      it("never lead out of a confined agent", { skip: !confined && "has no inside" }, async () => {
        const up = "../".repeat(40);
        await symlink(join(outside, "secret.txt"), host("absolute"));
        await symlink(`${up}${outside}/secret.txt`, host("relative"));
        await symlink(outside, host("directory"));
        await symlink("/", host("slash"));
        await symlink("/proc/self/root", host("magic"));
        const paths = [
          ...[
            "absolute",
            "relative",
            "directory/secret.txt",
            `slash${outside}/secret.txt`,
            `magic${outside}/secret.txt`,
          ].map(at),
          `${outside}/secret.txt`,
          `/${up}${outside}/secret.txt`,
        ];
        for (const path of paths) {
          const file = await agent.files.read(path).catch(() => undefined);
          const found = file && Buffer.concat(await Array.fromAsync(file.content())).toString();
          assert.notEqual(found, "of the host", path);
          await file?.[Symbol.asyncDispose]();
          await agent.files.write(path, chunked("x")).catch(() => undefined);
          await agent.files.write(path, chunked(Buffer.alloc(MEBIBYTE))).catch(() => undefined);
          await agent.files.makeDir(`${path}.d/new`).catch(() => undefined);
          await agent.files.change(path, { mode: 0o777 }).catch(() => undefined);
          await agent.files.move(path, at("taken")).catch(() => undefined);
          await agent.files.remove(path).catch(() => undefined);
        }
        assert.deepEqual(await readdir(outside), ["secret.txt"]);
        assert.equal(await readFile(join(outside, "secret.txt"), "utf8"), "of the host");
      });

      it(
        "never lead out while directories are swapped for links",
        { skip: !confined && "has no inside" },
        async () => {
          await mkdir(host("real"));
          await symlink(outside, host("link"));
          await link(join(outside, "secret.txt"), join(outside, "kept"));
          const swapping = await shellOutside(join(root, "home"));
          const endMs = performance.now() + 1_500;
          while (performance.now() < endMs) {
            const path = at("door/secret.txt");
            const file = await agent.files.read(path).catch(() => undefined);
            const found =
              file && Buffer.concat(await Array.fromAsync(file.content()).catch(() => [])).toString();
            await file?.[Symbol.asyncDispose]();
            assert.notEqual(found, "of the host");
            await agent.files.write(path, chunked("inside")).catch(() => undefined);
            await agent.files.write(path, chunked(Buffer.alloc(200_000))).catch(() => undefined);
            await agent.files.makeDir(at("door/made")).catch(() => undefined);
            await agent.files.move(at("door/made"), at("door/moved")).catch(() => undefined);
            await agent.files.remove(path).catch(() => undefined);
            await agent.files.remove(at("door/moved")).catch(() => undefined);
          }
          await swapping.close();
          assert.deepEqual((await readdir(outside)).sort(), ["kept", "secret.txt"]);
          assert.equal(await readFile(join(outside, "secret.txt"), "utf8"), "of the host");
          await rm(join(outside, "kept"));
        },
      );
    },
  );
}

/** Swaps `real` and `link` under the name `door`, over and over. */
async function shellOutside(directory: string): Promise<AgentConnection> {
  const attacker = await startHostAgent();
  const script =
    "import os\nwhile True:\n  os.rename('real', 'door'); os.rename('door', 'real'); os.rename('link', 'door'); os.rename('door', 'link')\n";
  await attacker.spawn({
    path: "python3",
    args: ["-c", script],
    env: { PATH: "/usr/bin:/bin" },
    cwd: directory,
    input: "none",
  });
  return attacker;
}
