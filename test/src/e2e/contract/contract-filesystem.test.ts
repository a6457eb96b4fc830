import assert from "node:assert/strict";
import { it } from "node:test";
import { basicUserHeader } from "../../harness/clients/envd-client.js";
import { filesRequests, refusal } from "./files-requests.js";
import { onEachBackend } from "../../harness/server/on-each-backend.js";

/** Table D.5 of E2B's interface, row by row. Titles are the rows; docs/compatibility.md lists them. */
onEachBackend("filesystem.Filesystem by its contract", ({ backend, server, sandbox }) => {
  const { call, get, put, sh, stat } = filesRequests(server, sandbox);

  it("D.5 EntryInfo, a file, a directory, links, and what is none of these", async () => {
    await sh(
      "mkdir -p entry; cd entry; printf 12345 >file; chmod 640 file; ln -s file good; ln -s gone dangling; ln -s loop loop; mkfifo pipe; mkdir -m 1777 sticky",
    );
    const { modifiedTime, owner, group, ...file } = await stat("entry/file");
    assert.deepEqual(file, {
      name: "file",
      type: "FILE_TYPE_FILE",
      path: "/home/user/entry/file",
      size: "5",
      mode: 0o640,
      permissions: "-rw-r-----",
    });
    assert.match(modifiedTime, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/);
    assert.equal(owner, "user");
    assert.equal(typeof group, "string");
    const good = await stat("entry/good");
    assert.deepEqual(
      [good.type, good.mode, good.size, good.permissions, good.symlinkTarget],
      ["FILE_TYPE_FILE", 0o640, "4", "Lrwxrwxrwx", "/home/user/entry/file"],
    );
    for (const name of ["dangling", "loop"]) {
      const link = await stat(`entry/${name}`);
      assert.deepEqual(
        [link.type, link.mode, link.symlinkTarget],
        [undefined, undefined, `/home/user/entry/${name}`],
      );
    }
    assert.equal((await stat("entry/pipe")).type, undefined);
    const sticky = await stat("entry/sticky");
    assert.deepEqual(
      [sticky.type, sticky.permissions, sticky.mode],
      ["FILE_TYPE_DIRECTORY", "dtrwxrwxrwx", 0o777],
    );
    assert.equal((await stat("/tmp")).permissions, "dtrwxrwxrwx");
    const names = (await sandbox().files.list("entry")).map(({ name }) => name);
    assert.deepEqual(names, ["file", "good", "sticky"], "the SDK drops what has no type");
  });

  it("D.5 EntryInfo, owners and groups by name, else by number", { skip: oneAccount(backend) }, async () => {
    await sh("touch /tmp/owned; chown 4321:8765 /tmp/owned", basicUserHeader("root"));
    const { owner, group } = await stat("/tmp/owned");
    assert.deepEqual([owner, group], ["4321", "8765"]);
    assert.deepEqual([(await stat("/etc/passwd")).owner, (await stat("~")).group], ["root", "user"]);
  });

  it("D.5 Stat", async () => {
    assert.deepEqual(
      await call("Stat", { path: "/no/such" }),
      refusal(404, "not_found", "file not found: lstat /no/such: no such file or directory"),
    );
  });

  it("D.5 MakeDir", async () => {
    const { body } = await call("MakeDir", { path: "new/deep/er" });
    assert.deepEqual(
      [body.entry.path, body.entry.permissions, body.entry.owner],
      ["/home/user/new/deep/er", "drwxr-xr-x", "user"],
    );
    assert.deepEqual((await stat("new")).permissions, "drwxr-xr-x");
    await put("new/file", "x");
    assert.deepEqual(
      await call("MakeDir", { path: "new/deep" }),
      refusal(409, "already_exists", "directory already exists: /home/user/new/deep"),
    );
    assert.deepEqual(
      await call("MakeDir", { path: "new/file" }),
      refusal(400, "invalid_argument", "path already exists but it is not a directory: /home/user/new/file"),
    );
    assert.deepEqual(
      await call("MakeDir", { path: "new/file/x/y" }),
      refusal(500, "internal", "path is a file: /home/user/new/file"),
    );
  });

  it("D.5 Move", async () => {
    await put("move/from", "moved");
    await put("move/to/old", "old");
    const { body } = await call("Move", { source: "move/from", destination: "move/way/to/new" });
    assert.equal(body.entry.path, "/home/user/move/way/to/new");
    await call("Move", { source: "move/way/to/new", destination: "move/to/old" });
    assert.equal((await get({ path: "move/to/old" })).text, "moved");
    const missing = await call("Move", { source: "move/absent", destination: "x" });
    assert.deepEqual([missing.status, missing.body.code], [404, "not_found"]);
    assert.match(missing.body.message, /^source file not found: /);
    const failed = await call("Move", { source: "move/to/old", destination: "move/way" });
    assert.deepEqual([failed.status, failed.body.code], [500, "internal"]);
    assert.match(failed.body.message, /^error renaming: /);
    const into = await call("Move", { source: "move", destination: "move/way/inside" });
    assert.match(into.body.message, /^error renaming: /);
  });

  it("D.5 ListDir", async () => {
    await sh(
      "mkdir -p list/b/c/d; cd list; touch z a b/y b/c/x 'B' b-; ln -s ../list b/up; ln -s list ../to-list; ln -s circle ../circle",
    );
    const list = async (path: string, depth?: number) =>
      ((await call("ListDir", { path, depth })).body.entries as { path: string }[]).map((entry) =>
        entry.path.replace(/^\/home\/user\//, ""),
      );
    const top = ["B", "a", "b", "b-", "z"];
    for (const depth of [undefined, 0, 1])
      assert.deepEqual(
        await list("list", depth),
        top.map((name) => `list/${name}`),
      );
    assert.deepEqual(
      await list("list", 3),
      ["B", "a", "b", "b/c", "b/c/d", "b/c/x", "b/up", "b/y", "b-", "z"].map((name) => `list/${name}`),
    );
    assert.deepEqual(
      await list("to-list"),
      top.map((name) => `to-list/${name}`),
      "the root's own link is followed",
    );
    assert.deepEqual(
      await call("ListDir", { path: "absent" }),
      refusal(404, "not_found", "path not found: lstat /home/user/absent: no such file or directory"),
    );
    assert.deepEqual(
      await call("ListDir", { path: "list/a" }),
      refusal(400, "invalid_argument", "path is not a directory: /home/user/list/a"),
    );
    assert.deepEqual(
      await call("ListDir", { path: "circle" }),
      refusal(400, "failed_precondition", 'cyclic symlink or chain >255 links at "/home/user/circle"'),
    );
    await sh("mkdir -p nothing");
    assert.deepEqual((await call("ListDir", { path: "nothing" })).body, {}, "defaults are left out");
  });

  it("D.5 Remove", async () => {
    await put("remove/tree/file", "x");
    assert.deepEqual(await call("Remove", { path: "remove" }), { status: 200, body: {} });
    assert.deepEqual(await call("Remove", { path: "remove" }), { status: 200, body: {} });
    assert.equal((await call("Stat", { path: "remove" })).status, 404);
    await sh("mkdir kept; ln -s kept link");
    await call("Remove", { path: "link" });
    assert.equal((await stat("kept")).type, "FILE_TYPE_DIRECTORY");
    for (const path of backend === "local-process" ? ["/"] : ["/", "/proc/1", "/proc"]) {
      const { status, body } = await call("Remove", { path });
      assert.deepEqual([status, body.code], [500, "internal"], `${path}: ${body.message}`);
      assert.match(body.message, /^error removing file or directory: /);
    }
    assert.deepEqual(
      await call("Remove", { path: "~other" }),
      refusal(400, "invalid_argument", "cannot expand user-specific home dir"),
    );
  });
});

function oneAccount(backend: string): string | false {
  return backend === "local-process" ? "all accounts of local-process are the server's own" : false;
}
