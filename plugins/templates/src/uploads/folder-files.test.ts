import assert from "node:assert/strict";
import { chmod, mkdir, mkdtemp, readFile, rm, symlink, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, before, describe, it } from "node:test";
import { gunzipSync } from "node:zlib";
import { entriesOfTar } from "@coppice/core/testing";
import { findFiles, packFolder, readIgnored } from "./folder-files.js";

const FILES = [
  "a.txt",
  ".hidden.txt",
  "b.md",
  "src/a.txt",
  "src/deep/er/c.txt",
  "src/d[1].md",
  "logs/x.log",
  "logs/keep.log",
];

describe("files of a folder for COPY", () => {
  let folder: string;
  before(async () => {
    folder = await mkdtemp(join(tmpdir(), "coppice-folder-"));
    for (const path of FILES) {
      await mkdir(dirname(join(folder, path)), { recursive: true });
      await writeFile(join(folder, path), path);
    }
    await symlink("/nowhere", join(folder, "src/broken"));
    await writeFile(join(folder, ".dockerignore"), "# rules\n**/*.log\n!logs/keep.log\n.dockerignore\n");
  });
  after(() => rm(folder, { recursive: true }));

  const find = async (source: string): Promise<readonly string[]> =>
    (await findFiles(folder, source, await readIgnored(folder))).map(({ path }) => path);

  for (const [source, found] of [
    ["a.txt", ["a.txt"]],
    ["missing", []],
    ["a.txt/below", []],
    ["src/deep", ["src/deep", "src/deep/er", "src/deep/er/c.txt"]],
    ["*.txt", [".hidden.txt", "a.txt"]],
    ["?.[mt]*", ["a.txt", "b.md"]],
    ["src/*.txt", ["src/a.txt"]],
    ["src/**/*.txt", ["src/a.txt", "src/deep/er/c.txt"]],
    ["src/d*", ["src/d[1].md", "src/deep", "src/deep/er", "src/deep/er/c.txt"]],
    ["logs", ["logs", "logs/keep.log"]],
    ["*.log", []],
    [
      ".",
      [
        ".hidden.txt",
        "a.txt",
        "b.md",
        "logs",
        "logs/keep.log",
        "src",
        "src/a.txt",
        "src/broken",
        "src/d[1].md",
        "src/deep",
        "src/deep/er",
        "src/deep/er/c.txt",
      ],
    ],
  ] as const) {
    it(`'${source}' is ${found.length} of them`, async () => assert.deepEqual(await find(source), found));
  }

  it("make an archive whose hash changes with names, permissions and contents, and not with times", async () => {
    const archive = `${folder}.tar.gz`;
    const pack = async (of: readonly string[] = ["x"]) => {
      const files = await findFiles(folder, "src", await readIgnored(folder));
      const { hash, bytes } = await packFolder({ folder, files, of }, archive, new AbortController().signal);
      assert.equal((await readFile(archive)).length, bytes);
      return hash;
    };
    try {
      const first = await pack();
      assert.match(first, /^[0-9a-f]{64}$/);
      const entries = entriesOfTar(gunzipSync(await readFile(archive)));
      assert.equal(entries.get("src/deep/er/c.txt"), "src/deep/er/c.txt");
      assert.ok(entries.has("src/broken"));
      await utimes(join(folder, "src/a.txt"), 1, 1);
      assert.equal(await pack(), first);
      assert.notEqual(await pack(["y"]), first);
      await chmod(join(folder, "src/a.txt"), 0o600);
      const second = await pack();
      assert.notEqual(second, first);
      await writeFile(join(folder, "src/a.txt"), "src/b.txt");
      assert.notEqual(await pack(), second);
    } finally {
      await rm(archive);
    }
  });
});
