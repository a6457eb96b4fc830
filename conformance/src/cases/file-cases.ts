import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import type { ErrorCode, FileInfo } from "@coppice/core/backend";
import { CaseSkipped, type ConformanceCase } from "../kit/conformance-case.js";
import { type Canary, chunked, type ConformanceContext } from "../kit/conformance-context.js";
import { FACTS } from "../kit/facts.js";
import { attackByLinkSwaps } from "../kit/link-swap-attack.js";

const MEBIBYTE = 2 ** 20;
const SWAP_MS = 1_500;

/** Without /proc, its links dangle. */
const REFUSALS_OF_CHANGES: readonly ErrorCode[] = ["invalid_argument", "failed_precondition", "not_found"];

/** Files, and that no path of a sandbox leads out of it. */
export const fileCases: readonly ConformanceCase[] = [
  {
    name: "mode and owner of a file are changed one by one, and those of what a link leads to",
    group: "files",
    needs: ["accounts", { program: "ln" }],
    async run(context) {
      const { files } = context.sandbox;
      if (files.change === undefined) throw new CaseSkipped("its backend changes neither modes nor owners");
      const path = context.home("changed");
      const { uid, gid } = await context.write(path, "x");
      await context.succeed("ln -s changed link");
      assertInfo(await files.change(path, { mode: 0o640 }), { mode: 0o640, uid, gid });
      await files.change(context.home("link"), { owner: { uid: 77, gid: 78 } });
      assertInfo(await files.stat(path), { mode: 0o640, uid: 77, gid: 78, sizeBytes: 1 });
      await context.refuses(files.change(context.home("missing"), { mode: 0o600 }), "not_found");
    },
  },
  {
    name: "neither special files nor files behind a descriptor of the server or the agent are changed",
    group: "files",
    needs: ["accounts", { program: "ln" }],
    async run(context) {
      const { files } = context.sandbox;
      if (files.change === undefined) throw new CaseSkipped("its backend changes neither modes nor owners");
      const tell = `${FACTS}; facts /dev/null pipe`;
      await context.succeed("mkfifo -m 640 pipe; ln -s /dev/null null");
      for (const descriptor of [0, 1, 2, 3])
        await context.succeed(`ln -s /proc/self/fd/${descriptor} fd${descriptor}`);
      const before = await context.succeed(tell);
      const links = [0, 1, 2, 3].map((descriptor) => `fd${descriptor}`);
      for (const name of ["pipe", "null", ...links]) {
        // The values that a device has anyway: a failing backend may change the host's.
        for (const change of [{ mode: 0o666 }, { owner: { uid: 0, gid: 0 } }, { metadata: { a: "b" } }]) {
          await context.refuses(files.change(context.home(name), change), REFUSALS_OF_CHANGES);
        }
      }
      assert.equal(await context.succeed(tell), before);
    },
  },
  {
    name: "processes and reads see written files, and the other way round",
    group: "files",
    async run(context) {
      await context.write(context.home("a.txt"), "from the server\n");
      assert.equal(await context.succeed("cat a.txt"), "from the server\n");
      await context.succeed("echo from the sandbox > a.txt");
      assert.equal((await context.read(context.home("a.txt"))).toString(), "from the sandbox\n");
    },
  },
  {
    name: "a path that a process prints means the same file to the server",
    group: "files",
    async run(context) {
      await context.write(context.home("inside/a.txt"), "same");
      const path = (await context.succeed("cd inside && pwd")).trimEnd();
      assert.equal((await context.read(`${path}/a.txt`)).toString(), "same");
      await context.succeed('ln -s "$(pwd)/inside/a.txt" link');
      assert.equal((await context.read(context.home("link"))).toString(), "same");
    },
  },
  {
    name: "writing returns the written entry, and makes missing parents",
    group: "files",
    async run(context) {
      const path = context.home("new/deep/file.bin");
      const info = await context.write(path, Buffer.alloc(1_234));
      assertInfo(info, { name: "file.bin", path, kind: "file", sizeBytes: 1_234, mode: 0o644 });
      assert.deepEqual(info, await context.sandbox.files.stat(path));
      const parent = await context.sandbox.files.stat(context.home("new/deep"));
      assertInfo(parent, { name: "deep", kind: "directory", mode: 0o755 });
      assert.equal(info.owner, context.user.name);
      assert.equal(info.uid, context.user.uid);
      assert.equal(parent.owner, context.user.name);
    },
  },
  {
    name: "a written file has the mode that was asked for, and keeps its own when written again",
    group: "files",
    async run(context) {
      const { files } = context.sandbox;
      const path = context.home("script");
      assert.equal((await files.write(path, chunked(Buffer.from("1")), { mode: 0o755 })).mode, 0o755);
      for (const body of [Buffer.from("22"), Buffer.alloc(3 * MEBIBYTE)]) {
        const info = await files.write(path, chunked(body));
        assert.equal(info.mode, 0o755);
        assert.equal(info.sizeBytes, body.byteLength);
      }
    },
  },
  {
    name: "content that is in memory is written as a stream is: small, large, none, and nowhere",
    group: "files",
    async run(context) {
      const { files } = context.sandbox;
      const { user } = context;
      if (files.writeWhole === undefined) throw new CaseSkipped("its backend has one way to write a file");
      const path = context.home("whole/deep/file.bin");
      for (const sizeBytes of [1_234, 3 * MEBIBYTE, 0, MEBIBYTE / 8 + 1]) {
        const content = randomBytes(sizeBytes);
        const info = await files.writeWhole(path, content, { mode: 0o600, metadata: { of: "the file" } });
        assertInfo(info, { name: "file.bin", path, kind: "file", sizeBytes, mode: 0o600, uid: user.uid });
        assert.deepEqual(info, await files.stat(path));
        assert.ok(content.equals(await context.read(path)), `${sizeBytes} bytes differ`);
      }
      for (const content of [Buffer.from("x"), Buffer.alloc(MEBIBYTE)]) {
        await context.refuses(files.writeWhole(context.home("whole"), content), "invalid_argument");
        await context.refuses(files.writeWhole(`${path}/below`, content), "invalid_argument");
        await context.refuses(files.writeWhole("relative", content), "invalid_argument");
      }
      assert.deepEqual(
        (await context.list(context.home("whole"), 3)).map(({ name }) => name),
        ["deep", "file.bin"],
      );
    },
  },
  {
    name: "an empty file is a file",
    group: "files",
    async run(context) {
      assert.equal((await context.write(context.home("empty"), "")).sizeBytes, 0);
      assert.equal((await context.read(context.home("empty"))).byteLength, 0);
    },
  },
  {
    name: "sixteen mebibytes go in and out as they are, in pieces",
    group: "files",
    async run(context) {
      const blob = randomBytes(16 * MEBIBYTE);
      await context.write(context.home("large"), chunked(blob));
      await using file = await context.sandbox.files.read(context.home("large"));
      assert.equal(file.info.sizeBytes, blob.byteLength);
      let position = 0;
      for await (const piece of file.content()) {
        assert.ok(piece.byteLength <= MEBIBYTE, "a piece is larger than a mebibyte");
        assert.ok(blob.subarray(position, position + piece.byteLength).equals(piece), "the bytes differ");
        position += piece.byteLength;
      }
      assert.equal(position, blob.byteLength);
    },
  },
  {
    name: "a read may begin anywhere and end early",
    group: "files",
    async run(context) {
      await context.write(context.home("digits"), "0123456789");
      const cases = [
        [{ offset: 3 }, "3456789"],
        [{ length: 4 }, "0123"],
        [{ offset: 8, length: 10 }, "89"],
        [{ offset: 10 }, ""],
        [{ offset: 99 }, ""],
        [{ length: 0 }, ""],
      ] as const;
      for (const [options, expected] of cases) {
        await using file = await context.sandbox.files.read(context.home("digits"));
        const pieces = await Array.fromAsync(file.content(options));
        assert.equal(Buffer.concat(pieces).toString(), expected, JSON.stringify(options));
      }
    },
  },
  {
    name: "an aborted read closes the file",
    group: "files",
    async run(context) {
      await context.write(context.home("large"), Buffer.alloc(2 * MEBIBYTE));
      await using file = await context.sandbox.files.read(context.home("large"));
      for await (const _ of file.content()) break;
    },
  },
  {
    name: "a write whose source fails leaves the old file, or none, and no parents",
    group: "files",
    async run(context) {
      await context.write(context.home("old"), "as it was");
      for (const sizeBytes of [10, 3 * MEBIBYTE]) {
        for (const name of ["old", "new", "missing/new"]) {
          await assert.rejects(context.write(context.home(name), failing(sizeBytes)), /the source failed/);
        }
        assert.equal((await context.read(context.home("old"))).toString(), "as it was");
        const names = (await context.list(context.user.home)).map((entry) => entry.name);
        assert.ok(!names.includes("new") && !names.includes("missing"), `found ${names.join(", ")}`);
      }
    },
  },
  {
    name: "a large file appears whole",
    group: "files",
    async run(context) {
      const path = context.home("large");
      await context.write(path, "old");
      let seen = "";
      await context.write(
        path,
        (async function* () {
          yield* chunked(Buffer.alloc(3 * MEBIBYTE));
          seen = (await context.read(path)).toString();
        })(),
      );
      assert.equal(seen, "old");
      assert.equal((await context.sandbox.files.stat(path)).sizeBytes, 3 * MEBIBYTE);
    },
  },
  {
    name: "of writers at the same time one wins, whole",
    group: "files",
    async run(context) {
      const bodies = [10, 5_000, 100_000, 2 * MEBIBYTE].map((size, index) => Buffer.alloc(size, 65 + index));
      await Promise.all(bodies.map((body) => context.write(context.home("shared"), chunked(body))));
      const found = await context.read(context.home("shared"));
      assert.ok(
        bodies.some((body) => body.equals(found)),
        `found a mixture of ${found.byteLength} bytes`,
      );
    },
  },
  {
    name: "names may hold anything but a slash and NUL",
    group: "files",
    async run(context) {
      const names = [
        " ",
        "-rf",
        "a b'\"c",
        "line\nbreak",
        "ünï ✓ 🎉",
        "..x",
        "back\\slash",
        "%2e%2e",
        "x".repeat(255),
      ];
      for (const name of names) await context.write(context.home(`names/${name}`), name);
      const listed = (await context.list(context.home("names"))).map((entry) => entry.name);
      assert.deepEqual(listed, inByteOrder(names));
      for (const name of names) {
        assert.equal((await context.read(context.home(`names/${name}`))).toString(), name);
      }
      await context.refuses(context.write(context.home("x".repeat(256)), ""), "invalid_argument");
      await context.refuses(context.sandbox.files.stat(context.home("a\0b")), "invalid_argument");
    },
  },
  {
    name: "stat tells what an entry is",
    group: "files",
    async run(context) {
      const before = Date.now();
      await context.succeed("echo hello > file; chmod 640 file; mkdir dir; chmod 1777 dir");
      const file = await context.sandbox.files.stat(context.home("file"));
      assertInfo(file, { name: "file", path: context.home("file"), kind: "file", sizeBytes: 6, mode: 0o640 });
      assert.equal(file.rawMode, 0o100640);
      assert.equal(file.symlinkTarget, undefined);
      assert.ok(Math.abs(file.modifiedAtMs - before) < 60_000, `modified at ${file.modifiedAtMs}`);
      const directory = await context.sandbox.files.stat(context.home("dir"));
      assertInfo(directory, { kind: "directory", mode: 0o777 });
      assert.equal(directory.rawMode, 0o041777);
      await context.refuses(
        context.sandbox.files.stat(context.home("none")),
        "not_found",
        /no such file or directory/,
      );
      await context.refuses(context.sandbox.files.stat(context.home("file/below")), "not_found");
    },
  },
  {
    name: "stat tells where a link leads",
    group: "files",
    async run(context) {
      await context.succeed("mkdir dir; echo hello > dir/file; chmod 600 dir/file");
      await context.succeed(
        "ln -s dir/file link; ln -s link again; ln -s dir up; ln -s nowhere dangling; ln -s loop loop",
      );
      const stat = (name: string): Promise<FileInfo> => context.sandbox.files.stat(context.home(name));
      const target = context.home("dir/file");
      for (const name of ["link", "again"]) {
        assertInfo(await stat(name), { name, kind: "file", mode: 0o600, symlinkTarget: target });
        assert.equal((await stat(name)).rawMode & 0o170000, 0o120000);
      }
      assertInfo(await stat("up"), { kind: "directory", symlinkTarget: context.home("dir") });
      assertInfo(await stat("up/file"), {
        kind: "file",
        path: context.home("up/file"),
        symlinkTarget: undefined,
      });
      for (const name of ["dangling", "loop"]) {
        assertInfo(await stat(name), { kind: "unknown", mode: 0, symlinkTarget: context.home(name) });
      }
    },
  },
  {
    name: "list goes depth first, parents before children, names in byte order",
    group: "files",
    async run(context) {
      await context.succeed("mkdir -p t/b/c/d t/B; touch t/a t/b.txt t/b/z t/b/c/d/e t/Z t/é t/~");
      const names = async (depth: number): Promise<string[]> =>
        (await context.list(context.home("t"), depth)).map((entry) =>
          entry.path.slice(context.home("t/").length),
        );
      assert.deepEqual(await names(1), ["B", "Z", "a", "b", "b.txt", "~", "é"]);
      assert.deepEqual(await names(2), ["B", "Z", "a", "b", "b/c", "b/z", "b.txt", "~", "é"]);
      assert.deepEqual(await names(99), [
        "B",
        "Z",
        "a",
        "b",
        "b/c",
        "b/c/d",
        "b/c/d/e",
        "b/z",
        "b.txt",
        "~",
        "é",
      ]);
    },
  },
  {
    name: "list follows its root and no other link",
    group: "files",
    async run(context) {
      await context.succeed("mkdir -p real/below; touch real/file; ln -s real root; ln -s . real/again");
      const paths = (await context.list(context.home("root"), 5)).map((entry) => entry.path);
      assert.deepEqual(
        paths,
        ["again", "below", "file"].map((name) => context.home(`root/${name}`)),
      );
    },
  },
  {
    name: "list refuses what is missing, no directory, or a loop",
    group: "files",
    async run(context) {
      await context.succeed("touch file; ln -s two one; ln -s one two");
      await context.refuses(context.list(context.home("none")), "not_found");
      await context.refuses(context.list(context.home("file")), "invalid_argument");
      await context.refuses(context.list(context.home("one")), "failed_precondition");
    },
  },
  {
    name: "directories are made with their parents, once",
    group: "files",
    async run(context) {
      const { files } = context.sandbox;
      const made = await files.makeDir(context.home("one/two/three"));
      assertInfo(made, {
        name: "three",
        path: context.home("one/two/three"),
        kind: "directory",
        mode: 0o755,
      });
      await context.refuses(files.makeDir(context.home("one/two/three")), "already_exists");
      await context.write(context.home("file"), "");
      await context.refuses(files.makeDir(context.home("file")), "invalid_argument");
      await context.refuses(files.makeDir(context.home("file/below")), "invalid_argument");
    },
  },
  {
    name: "files and directories move, make parents and replace files",
    group: "files",
    async run(context) {
      const { files } = context.sandbox;
      await context.write(context.home("a"), "first");
      await context.write(context.home("b"), "second");
      const moved = await files.move(context.home("a"), context.home("new/place"));
      assertInfo(moved, { name: "place", path: context.home("new/place"), kind: "file", sizeBytes: 5 });
      await context.refuses(files.stat(context.home("a")), "not_found");
      await files.move(context.home("b"), context.home("new/place"));
      assert.equal((await context.read(context.home("new/place"))).toString(), "second");
      await files.move(context.home("new"), context.home("renamed"));
      assert.equal((await context.read(context.home("renamed/place"))).toString(), "second");
      await context.refuses(files.move(context.home("none"), context.home("x")), "not_found");
      await context.refuses(files.move(context.home("renamed"), context.home("renamed/below/itself")), [
        "invalid_argument",
        "failed_precondition",
      ]);
    },
  },
  {
    name: "a link moves as a link",
    group: "files",
    async run(context) {
      await context.succeed("echo target > target; ln -s target link");
      const moved = await context.sandbox.files.move(context.home("link"), context.home("other"));
      assert.equal(moved.symlinkTarget, context.home("target"));
      assert.equal((await context.read(context.home("target"))).toString(), "target\n");
    },
  },
  {
    name: "removing takes files, trees and links, and never what a link leads to",
    group: "files",
    async run(context) {
      const { files } = context.sandbox;
      await context.succeed(
        "mkdir -p kept tree/a/b/c; touch kept/file tree/a/file; ln -s ../kept tree/link; ln -s kept link",
      );
      await files.remove(context.home("tree"));
      await files.remove(context.home("link"));
      await files.remove(context.home("kept/file"));
      await files.remove(context.home("kept/file"));
      await files.remove(context.home("none/below"));
      const left = (await context.list(context.user.home, 9)).map((entry) => entry.name);
      assert.ok(left.includes("kept") && !left.includes("tree") && !left.includes("link"), left.join(", "));
    },
  },
  {
    name: "special files are neither read nor written, and no call waits for them",
    group: "files",
    async run(context) {
      await context.succeed("mkfifo pipe; mkdir dir");
      for (const name of ["pipe", "dir"]) {
        const path = context.home(name);
        await context.within(
          2_000,
          `${name} is refused`,
          context.refuses(context.read(path), "invalid_argument"),
        );
        await context.within(
          2_000,
          `${name} is refused`,
          context.refuses(context.write(path, "x"), "invalid_argument"),
        );
      }
      assertInfo(await context.sandbox.files.stat(context.home("pipe")), { kind: "unknown" });
      await context.refuses(context.read(context.home("none")), "not_found");
      await context.write(context.home("file"), "");
      await context.refuses(context.write(context.home("file/below"), ""), "invalid_argument");
    },
  },
  {
    name: "writing through a link writes its target, also one that is not there yet",
    group: "files",
    async run(context) {
      await context.succeed("touch target; ln -s target link; ln -s later dangling");
      await context.write(context.home("link"), "one");
      await context.write(context.home("dangling"), "two");
      assert.equal(
        await context.succeed("cat target later; readlink link dangling"),
        "onetwotarget\nlater\n",
      );
      await context.succeed("ln -s loop loop");
      await context.refuses(context.write(context.home("loop"), ""), "failed_precondition");
    },
  },
  {
    name: "absolute links, relative links and dots never lead out, whatever the operation",
    group: "files",
    async run(context) {
      const canary = await context.canary();
      const up = "../".repeat(40);
      await context.succeed(
        `ln -s "$1" absolute; ln -s "${up}$1" relative; ln -s "$2" directory; ln -s / slash; ln -s absolute twice`,
        { args: [canary.file, canary.directory] },
      );
      const paths = [
        ...["absolute", "relative", "twice", "directory/secret.txt", `slash${canary.file}`].map((name) =>
          context.home(name),
        ),
        canary.file,
        `/${up}${canary.file}`,
        context.home(`${up}${canary.file}`),
      ];
      for (const path of paths) {
        const found = await context.read(path).catch(() => Buffer.alloc(0));
        assert.ok(!found.includes(canary.secret), `read a file of the host by ${path}`);
      }
      await tryEverything(context, paths, canary);
    },
  },
  {
    name: "a directory that is swapped for a link during an operation never leads out",
    group: "files",
    run: (context) => attackByLinkSwaps(context, SWAP_MS),
  },
  {
    name: "a file that is being read stays what it is, although another takes its name",
    group: "files",
    async run(context) {
      const { files } = context.sandbox;
      const old = randomBytes(2 * MEBIBYTE);
      await context.write(context.home("file"), old);
      await context.write(context.home("other"), "new");
      await using file = await files.read(context.home("file"));
      const content = file.content()[Symbol.asyncIterator]();
      const first = (await content.next()).value ?? new Uint8Array();
      await files.move(context.home("other"), context.home("file"));
      const rest = await Array.fromAsync({ [Symbol.asyncIterator]: () => content });
      assert.ok(Buffer.concat([first, ...rest]).equals(old), "the bytes differ");
      assert.equal((await context.read(context.home("file"))).toString(), "new");
    },
  },
  {
    name: "a file may be larger than four gigabytes",
    group: "files",
    needs: [{ program: "truncate" }],
    async run(context) {
      const sizeBytes = 5_000_000_000;
      await context.succeed('truncate -s "$1" huge && printf end >> huge', { args: [String(sizeBytes)] });
      await using file = await context.sandbox.files.read(context.home("huge"));
      assert.equal(file.info.sizeBytes, sizeBytes + 3);
      const pieces = await Array.fromAsync(file.content({ offset: sizeBytes - 2 }));
      assert.equal(Buffer.concat(pieces).toString(), "\0\0end");
    },
  },
  {
    name: "a directory of two thousand entries is listed whole, and a listing can be left",
    group: "files",
    async run(context) {
      await context.succeed(
        "mkdir full; cd full; i=1000; while [ $i -lt 3000 ]; do : > $i; i=$((i + 1)); done",
      );
      const names = (await context.list(context.home("full"))).map((entry) => entry.name);
      assert.deepEqual(
        names,
        Array.from({ length: 2_000 }, (_, index) => String(1_000 + index)),
      );
      for (let round = 0; round < 20; round++) {
        for await (const entry of context.sandbox.files.list(context.home("full"), 1)) {
          assert.equal(entry.name, "1000");
          break;
        }
      }
    },
  },
  {
    name: "a hundred files are written, listed and read at the same time",
    group: "files",
    async run(context) {
      const names = Array.from({ length: 100 }, (_, index) => `many/${index % 10}/${index}`);
      await Promise.all(names.map((name) => context.write(context.home(name), name.repeat(100))));
      const found = await Promise.all(
        names.map(async (name) => [
          (await context.sandbox.files.stat(context.home(name))).sizeBytes,
          (await context.read(context.home(name))).toString(),
        ]),
      );
      assert.deepEqual(
        found,
        names.map((name) => [name.length * 100, name.repeat(100)]),
      );
    },
  },
  {
    name: "a tree of three hundred levels is removed, and a path that is too long is refused",
    group: "files",
    async run(context) {
      await context.succeed("i=0; while [ $i -lt 150 ]; do mkdir -p d/d/x && cd d/d && i=$((i + 1)); done");
      await context.sandbox.files.remove(context.home("d"));
      await context.refuses(context.sandbox.files.stat(context.home("d")), "not_found");
      const long = context.home("d/".repeat(5_000));
      await context.refuses(context.sandbox.files.stat(long), "invalid_argument");
      await context.refuses(context.write(`${long}x`, ""), "invalid_argument");
    },
  },
  {
    name: "a full disk refuses a file that does not fit, leaves the old one and accepts one that fits",
    group: "files",
    needs: [{ limit: "diskMiB" }],
    async run(context) {
      const { files } = await context.provision({ limits: { diskMiB: 64 } });
      const path = context.home("file");
      await files.write(path, chunked(Buffer.from("as it was")));
      const content = Buffer.alloc(96 * MEBIBYTE);
      const isFull = { name: "SandboxError", code: "resource_exhausted", shortage: "space" };
      await assert.rejects(files.write(path, chunked(content)), isFull);
      if (files.writeWhole !== undefined) await assert.rejects(files.writeWhole(path, content), isFull);
      await using file = await files.read(path);
      const pieces = await Array.fromAsync(file.content());
      assert.equal(Buffer.concat(pieces).toString(), "as it was");
      await files.write(path, chunked(Buffer.alloc(MEBIBYTE)));
    },
  },
];

/** Runs every modifying operation on every path; whatever it answers, the host stays unchanged. */
async function tryEverything(
  context: ConformanceContext,
  paths: readonly string[],
  canary: Canary,
): Promise<void> {
  const { files } = context.sandbox;
  for (const path of paths) {
    const listed = await context.list(path.slice(0, -"/secret.txt".length) || "/", 1).catch(() => []);
    assert.ok(
      !listed.some((entry) => entry.name === "secret.txt"),
      `listed a directory of the host by ${path}`,
    );
    await context.write(`${path}.new`, "x").catch(() => undefined);
    await files.makeDir(`${path}.d/new`).catch(() => undefined);
    await canary.verify();
  }
  for (const path of paths) {
    await context.write(path, "overwritten").catch(() => undefined);
    await context.write(path, Buffer.alloc(3 * MEBIBYTE)).catch(() => undefined);
    await files.move(path, context.home("taken")).catch(() => undefined);
    await context.write(context.home("mine"), "x");
    await files.move(context.home("mine"), path).catch(() => undefined);
    await files.change?.(path, { mode: 0o777, owner: { uid: 7, gid: 7 } }).catch(() => undefined);
    await files.remove(path).catch(() => undefined);
    await canary.verify();
  }
}

function assertInfo(info: FileInfo, expected: Partial<FileInfo>): void {
  const names = Object.keys(expected) as (keyof FileInfo)[];
  assert.deepEqual(Object.fromEntries(names.map((name) => [name, info[name]])), { ...expected });
}

function inByteOrder(names: readonly string[]): string[] {
  return names.toSorted((one, other) => Buffer.compare(Buffer.from(one), Buffer.from(other)));
}

async function* failing(sizeBytes: number): AsyncGenerator<Uint8Array> {
  yield* chunked(Buffer.alloc(sizeBytes));
  throw new Error("the source failed");
}
