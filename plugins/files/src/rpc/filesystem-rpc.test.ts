import assert from "node:assert/strict";
import { chmod, mkdir, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, it } from "node:test";
import { type FilesServer, startFilesServer } from "../testing/files-server.js";

let files: FilesServer;
before(async () => {
  files = await startFilesServer({ settings: { maxListEntries: 50 } });
});
after(async () => files[Symbol.asyncDispose]());

const refusal = (status: number, code: string, message: string) => ({ status, body: { code, message } });
const asUser = (name: string) => ({ authorization: `Basic ${Buffer.from(`${name}:`).toString("base64")}` });

it("Stat describes an entry in proto3 JSON", async () => {
  await files.put("/home/user/s.txt", "hello");
  const { status, body } = await files.call("Stat", { path: "s.txt" });
  assert.equal(status, 200);
  const { modifiedTime, owner, group, ...rest } = body.entry;
  assert.deepEqual(rest, {
    name: "s.txt",
    type: "FILE_TYPE_FILE",
    path: "/home/user/s.txt",
    size: "5",
    mode: 0o644,
    permissions: "-rw-r--r--",
  });
  assert.equal(owner, "user");
  assert.equal(typeof group, "string");
  assert.ok(Math.abs(Date.parse(modifiedTime) - Date.now()) < 10_000, modifiedTime);
  const directory = (await files.call("Stat", { path: "~" })).body.entry;
  assert.equal(directory.type, "FILE_TYPE_DIRECTORY");
  assert.match(directory.permissions, /^drwx/);
  assert.deepEqual(
    await files.call("Stat", { path: "/nope" }),
    refusal(404, "not_found", "file not found: lstat /nope: no such file or directory"),
  );
});

it("A link is described by its target's type and mode, and by its own size and permissions", async () => {
  const home = await files.hostPath("/home/user");
  await files.put("/home/user/links/target", "0123456789");
  await chmod(join(home, "links/target"), 0o600);
  await symlink("target", join(home, "links/good"));
  await symlink("gone", join(home, "links/dangling"));
  const good = (await files.call("Stat", { path: "links/good" })).body.entry;
  assert.equal(good.type, "FILE_TYPE_FILE");
  assert.equal(good.mode, 0o600);
  assert.equal(good.size, "6");
  assert.equal(good.permissions, "Lrwxrwxrwx");
  assert.equal(good.symlinkTarget, "/home/user/links/target");
  const dangling = (await files.call("Stat", { path: "links/dangling" })).body.entry;
  assert.equal(dangling.type, undefined);
  assert.equal(dangling.mode, undefined);
  assert.equal(dangling.symlinkTarget, "/home/user/links/dangling");
});

it("MakeDir makes parents, and names an obstacle", async () => {
  const made = await files.call("MakeDir", { path: "/tmp/made/deep" });
  assert.equal(made.body.entry.path, "/tmp/made/deep");
  assert.equal(made.body.entry.permissions, "drwxr-xr-x");
  assert.deepEqual(
    await files.call("MakeDir", { path: "/tmp/made" }),
    refusal(409, "already_exists", "directory already exists: /tmp/made"),
  );
  await files.put("/tmp/made/file", "x");
  assert.deepEqual(
    await files.call("MakeDir", { path: "/tmp/made/file" }),
    refusal(400, "invalid_argument", "path already exists but it is not a directory: /tmp/made/file"),
  );
  assert.deepEqual(
    await files.call("MakeDir", { path: "/tmp/made/file/below" }),
    refusal(500, "internal", "path is a file: /tmp/made/file"),
  );
});

it("Move renames, replaces files, and makes parents", async () => {
  await files.put("/tmp/from", "moved");
  await files.put("/tmp/new/to", "old");
  const moved = await files.call("Move", { source: "/tmp/from", destination: "/tmp/new/to" });
  assert.equal(moved.body.entry.path, "/tmp/new/to");
  assert.equal(await (await files.fetch("/files?path=/tmp/new/to")).text(), "moved");
  await files.call("Move", { source: "/tmp/new/to", destination: "/tmp/other/deep/to" });
  assert.deepEqual(
    await files.call("Move", { source: "/tmp/from", destination: "/tmp/x" }),
    refusal(404, "not_found", "source file not found: /tmp/from"),
  );
  const refused = await files.call("Move", { source: "/tmp/other/deep/to", destination: "/tmp/other" });
  assert.equal(refused.body.code, "internal");
  assert.match(refused.body.message, /^error renaming: /);
});

it("ListDir goes as deep as it is asked to, parents first, names in order", async () => {
  const tree = join(await files.hostPath("/home/user"), "tree");
  await mkdir(join(tree, "b/c"), { recursive: true });
  for (const name of ["z", "a", "b/y", "b/c/x"]) await writeFile(join(tree, name), "");
  const list = async (body: object) =>
    (await files.call("ListDir", body)).body.entries.map(({ path }: { path: string }) => path);
  assert.deepEqual(
    await list({ path: "tree" }),
    ["a", "b", "z"].map((name) => `/home/user/tree/${name}`),
  );
  assert.deepEqual(
    await list({ path: "tree", depth: 3 }),
    ["a", "b", "b/c", "b/c/x", "b/y", "z"].map((name) => `/home/user/tree/${name}`),
  );
  await symlink("tree", join(tree, "../to-tree"));
  assert.deepEqual(
    await list({ path: "to-tree", depth: 1 }),
    ["a", "b", "z"].map((name) => `/home/user/to-tree/${name}`),
  );
  assert.deepEqual(
    await files.call("ListDir", { path: "/nope" }),
    refusal(404, "not_found", "path not found: lstat /nope: no such file or directory"),
  );
  assert.deepEqual(
    await files.call("ListDir", { path: "tree/a" }),
    refusal(400, "invalid_argument", "path is not a directory: /home/user/tree/a"),
  );
  await symlink("loop", join(tree, "loop"));
  assert.deepEqual(
    await files.call("ListDir", { path: "tree/loop" }),
    refusal(400, "failed_precondition", 'cyclic symlink or chain >255 links at "/home/user/tree/loop"'),
  );
  for (let index = 0; index < 51; index++) await writeFile(join(tree, `b/c/${index}`), "");
  assert.deepEqual(
    await files.call("ListDir", { path: "tree", depth: 9 }),
    refusal(429, "resource_exhausted", "more than 50 entries below /home/user/tree"),
  );
});

it("Remove removes a whole tree, and accepts a missing path", async () => {
  await files.put("/tmp/rm/a/b", "x");
  assert.deepEqual(await files.call("Remove", { path: "/tmp/rm" }), { status: 200, body: {} });
  assert.equal((await files.call("Stat", { path: "/tmp/rm" })).status, 404);
  assert.deepEqual(await files.call("Remove", { path: "/tmp/rm" }), { status: 200, body: {} });
});

it("The user comes from Basic authentication", async () => {
  const home = (name: string) => files.call("Stat", { path: "" }, asUser(name));
  assert.equal((await home("root")).body.entry.path, "/root");
  assert.equal((await home("user")).body.entry.path, "/home/user");
  assert.equal(
    (await files.call("Stat", { path: "" }, { authorization: "Basic !" })).body.entry.path,
    "/home/user",
  );
  assert.deepEqual(
    await home("nobody-here"),
    refusal(401, "unauthenticated", "invalid username: 'nobody-here'"),
  );
});

it("Bad paths and bad bodies are the client's fault", async () => {
  for (const path of ["~other", "a\0b", "n".repeat(300)]) {
    for (const method of ["Stat", "MakeDir", "ListDir", "Remove", "CreateWatcher"]) {
      const { status, body } = await files.call(method, { path });
      assert.equal(status, 400, `${method} ${JSON.stringify(path.slice(0, 10))}: ${JSON.stringify(body)}`);
      assert.equal(body.code, "invalid_argument");
    }
  }
  assert.equal((await files.call("Stat", { path: 1 })).status, 400);
  assert.equal((await files.call("ListDir", { path: "~", depth: -1 })).status, 400);
  assert.equal((await files.call("Stat", "no object")).status, 400);
  assert.equal((await files.call("Stat", { path: "/tmp" })).status, 200);
});

it("SDKs that know only three fields of an entry get these alone", async () => {
  await files.put("/tmp/strict/file", "x");
  const headers = { "user-agent": "connect-python" };
  const entry = { name: "file", type: "FILE_TYPE_FILE", path: "/tmp/strict/file" };
  assert.deepEqual((await files.call("Stat", { path: entry.path }, headers)).body, { entry });
  assert.deepEqual((await files.call("ListDir", { path: "/tmp/strict" }, headers)).body, {
    entries: [entry],
  });
  const moved = { ...entry, name: "moved", path: "/tmp/strict/moved" };
  const move = { source: entry.path, destination: moved.path };
  assert.deepEqual((await files.call("Move", move, headers)).body, { entry: moved });
  const made = { name: "dir", type: "FILE_TYPE_DIRECTORY", path: "/tmp/strict/dir" };
  assert.deepEqual((await files.call("MakeDir", { path: made.path }, headers)).body, { entry: made });
});
