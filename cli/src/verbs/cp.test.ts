import assert from "node:assert/strict";
import { mkdir, mkdtemp, readdir, readFile, rm, stat, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, it } from "node:test";
import { pipeline } from "node:stream/promises";
import { Header } from "tar";
import { unpackerOf } from "./cp.js";

interface Entry {
  readonly path: string;
  readonly type: "File" | "Directory" | "SymbolicLink" | "Link" | "CharacterDevice";
  readonly linkpath?: string;
  readonly mode?: number;
}

/** An archive that no tar would make. Each file has "evil". */
function archive(entries: readonly Entry[]): Buffer {
  const blocks = entries.flatMap((entry) => {
    const size = entry.type === "File" ? 4 : 0;
    const header = new Header({ mode: 0o644, ...entry, size, mtime: new Date(0) });
    const block = Buffer.alloc(512);
    header.encode(block);
    return size === 0 ? [block] : [block, Buffer.concat([Buffer.from("evil")], 512)];
  });
  return Buffer.concat([...blocks, Buffer.alloc(1024)]);
}

async function folders(context: TestContext) {
  const root = await mkdtemp(join(tmpdir(), "coppice-cp-"));
  context.after(() => rm(root, { recursive: true, force: true }));
  const folder = join(root, "here");
  await mkdir(folder);
  return { root, folder };
}

it("a copy from a hostile sandbox stays below its target", async (context) => {
  const { root, folder } = await folders(context);
  const { unpack, skipped } = unpackerOf({ folder, name: "out", as: "mine" });
  const hostile: readonly Entry[] = [
    { path: "./out", type: "Directory", mode: 0o755 },
    { path: "./out/good", type: "File", mode: 0o4755 },
    { path: "/etc/absolute", type: "File" },
    { path: "out/../../up", type: "File" },
    { path: "../out/up", type: "File" },
    { path: "other", type: "File" },
    { path: "out/link", type: "SymbolicLink", linkpath: root },
    { path: "out/hard", type: "Link", linkpath: "/etc/passwd" },
    { path: "out/device", type: "CharacterDevice" },
    { path: "out/link/through", type: "File" },
  ];
  await pipeline([archive(hostile)], unpack);
  assert.deepEqual((await readdir(root, { recursive: true })).sort(), [
    "here",
    "here/mine",
    "here/mine/good",
    "here/mine/link",
    "here/mine/link/through",
  ]);
  assert.ok((await stat(join(folder, "mine/link"))).isDirectory());
  assert.equal((await stat(join(folder, "mine/good"))).mode & 0o7000, 0);
  assert.equal(skipped(), 7);
});

it("a copy from a sandbox does not go through a link of this machine", async (context) => {
  const { root, folder } = await folders(context);
  await mkdir(join(root, "elsewhere"));
  await mkdir(join(folder, "out"));
  await symlink(join(root, "elsewhere"), join(folder, "out", "link"));
  const { unpack } = unpackerOf({ folder, name: "out", as: "out" });
  await assert.rejects(pipeline([archive([{ path: "out/link/file", type: "File" }])], unpack), /symlink/i);
  assert.deepEqual(await readdir(join(root, "elsewhere")), []);
  const whole = unpackerOf({ folder, name: "out", as: "out" });
  await pipeline([archive([{ path: "out/file", type: "File" }])], whole.unpack);
  assert.equal(await readFile(join(folder, "out/file"), "utf8"), "evil");
});
