import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { type ShellServer, startShellServer } from "../testing/shell-server.js";

describe("files over HTTP", { timeout: 120_000 }, () => {
  let shell: ShellServer;
  before(async () => {
    shell = await startShellServer({ maxFile: "1MiB", maxListEntries: 300 });
    await run("mkdir -p dir");
  });
  after(() => shell[Symbol.asyncDispose]());

  const post = async (path: string, body: unknown, status = 200) => {
    const answer = await shell.json("POST", path, body, status);
    delete answer["timestamp"];
    return answer;
  };
  // The paths of commands are those of the host, so theirs are relative.
  const run = async (command: string) => {
    const { exitCode, stderr } = await post("/api/execute", { command: `(${command})` });
    assert.equal(exitCode, 0, String(stderr));
  };
  const refused = async (path: string, body: unknown, status: number, code: string) => {
    const answer = await post(path, body, status);
    assert.equal(answer["code"], code, JSON.stringify(answer));
    assert.equal(answer["httpStatus"], status);
    return answer;
  };
  const sessionId = "files";

  it("text is written with missing parents, and read", async () => {
    const path = "/workspace/new/deep/a.txt";
    assert.deepEqual(await post("/api/write", { path, content: "héllo\n", sessionId }), {
      success: true,
      path,
    });
    assert.deepEqual(await post("/api/read", { path, sessionId }), {
      success: true,
      path,
      content: "héllo\n",
      encoding: "utf-8",
      isBinary: false,
      mimeType: "text/plain",
      size: 7,
    });
    const { content, encoding } = await post("/api/read", { path, encoding: "base64" });
    assert.deepEqual([content, encoding], [Buffer.from("héllo\n").toString("base64"), "base64"]);
  });

  it("bytes come as base64, and go as it", async () => {
    const bytes = Buffer.from([0x89, 0x50, 0, 0xff]);
    const path = "/workspace/image.png";
    await post("/api/write", { path, content: bytes.toString("base64"), encoding: "base64" });
    const { content, encoding, isBinary, mimeType, size } = await post("/api/read", { path });
    assert.deepEqual(
      [content, encoding, isBinary, mimeType, size],
      [bytes.toString("base64"), "base64", true, "image/png", 4],
    );
    assert.equal((await post("/api/read", { path, encoding: "utf-8" }))["content"], "�P\0�");
    for (const wrong of ["!", "QUJD!", "QUJ=D", "Q", "QUI===", "QU JD"]) {
      await refused("/api/write", { path, content: wrong, encoding: "base64" }, 400, "VALIDATION_FAILED");
    }
  });

  it("kinds of files have their types", async () => {
    for (const [name, content, type] of [
      ["a.ts", "const a = 1;", "text/plain"],
      ["a.json", "{}", "application/json"],
      ["a.html", "<p>", "text/html"],
      ["README", "text", "text/plain"],
      ["empty", "", "text/plain"],
    ] as const) {
      await post("/api/write", { path: `/workspace/kinds/${name}`, content });
      const { mimeType, isBinary } = await post("/api/read", { path: `/workspace/kinds/${name}` });
      assert.deepEqual([mimeType, isBinary], [type, false], name);
    }
  });

  it("relative paths begin at the directory of the session, while it runs a command, too", async () => {
    await post("/api/execute", { command: "cd dir", sessionId });
    let isOver = false;
    const running = post("/api/execute", { command: "sleep 2", sessionId }).then(() => (isOver = true));
    assert.deepEqual(await post("/api/write", { path: "here.txt", content: "1", sessionId }), {
      success: true,
      path: "/workspace/dir/here.txt",
    });
    assert.equal((await post("/api/exists", { path: "../dir/here.txt", sessionId }))["exists"], true);
    assert.equal((await post("/api/exists", { path: "here.txt" }))["exists"], false);
    assert.equal(isOver, false);
    await running;
    const missing = await refused("/api/read", { path: "none.txt", sessionId }, 404, "FILE_NOT_FOUND");
    assert.equal(missing["message"], "File not found: /workspace/dir/none.txt");
  });

  it("a stream has metadata, pieces, and its end", async () => {
    const bytes = Buffer.from(Array.from({ length: 150_000 }, (_, index) => index % 256));
    const path = "/workspace/stream.bin";
    await post("/api/write", { path, content: bytes.toString("base64"), encoding: "base64" });
    const events = await shell.events("POST", "/api/read/stream", { path });
    const pieces = events.filter(({ type }) => type === "chunk").map(({ data }) => String(data));
    assert.deepEqual(
      events.map(({ type }) => type),
      ["metadata", "chunk", "chunk", "chunk", "complete"],
    );
    assert.deepEqual(Buffer.from(pieces.join(""), "base64"), bytes);
    const { mimeType, size, isBinary, encoding } = events[0] ?? {};
    assert.deepEqual(
      [mimeType, size, isBinary, encoding],
      ["application/octet-stream", 150_000, true, "base64"],
    );
    assert.equal(events.at(-1)?.["bytesRead"], 150_000);

    // A character of three bytes lies across the end of each piece.
    const text = `a${"€".repeat(100_000)}`;
    await post("/api/write", { path, content: text });
    const texts = await shell.events("POST", "/api/read/stream", { path });
    assert.equal(texts[0]?.["isBinary"], false);
    const read = texts.filter(({ type }) => type === "chunk").map(({ data }) => String(data));
    assert.equal(read.join(""), text);
    assert.deepEqual(
      (await shell.events("POST", "/api/read/stream", { path: "/workspace/kinds/empty" })).map(
        ({ type }) => type,
      ),
      ["metadata", "complete"],
    );
    const [failed, ...more] = await shell.events("POST", "/api/read/stream", { path: "/none" });
    assert.deepEqual([failed?.["type"], failed?.["error"], more], ["error", "File not found: /none", []]);
  });

  it("a file beyond the limit is refused, and can be streamed", async () => {
    await run("head -c 1048577 /dev/zero > large");
    await refused("/api/read", { path: "/workspace/large" }, 413, "FILE_TOO_LARGE");
    const events = await shell.events("POST", "/api/read/stream", { path: "/workspace/large" });
    assert.equal(events.at(-1)?.["bytesRead"], 1_048_577);
  });

  it("directories are made, once, with parents only where asked", async () => {
    const path = "/workspace/made/one";
    const failed = await refused("/api/mkdir", { path }, 500, "FILESYSTEM_ERROR");
    const { exitCode, stderr } = failed["context"] as Record<string, unknown>;
    assert.deepEqual(
      [exitCode, stderr],
      [1, `mkdir: cannot create directory '${path}': No such file or directory`],
    );
    assert.deepEqual(await post("/api/mkdir", { path, recursive: true }), {
      success: true,
      path,
      recursive: true,
    });
    await post("/api/mkdir", { path, recursive: true });
    await refused("/api/mkdir", { path }, 500, "FILESYSTEM_ERROR");
    await refused(
      "/api/mkdir",
      { path: "/workspace/kinds/README/x", recursive: true },
      500,
      "FILESYSTEM_ERROR",
    );
    await post("/api/mkdir", { path: "/workspace/made/two" });
  });

  it("listings have one level or all, hidden files where asked", async () => {
    await run(
      "mkdir -p list/sub/.git; cd list; echo hi > a; chmod 640 a; touch .hidden sub/b sub/.git/c; ln -s a link; mkfifo fifo",
    );
    const names = async (options: object) => {
      const { files, count } = await post("/api/list-files", { path: "/workspace/list", options });
      const listed = files as Record<string, unknown>[];
      assert.equal(count, listed.length);
      return listed.map(({ relativePath, type }) => `${String(relativePath)} ${String(type)}`).sort();
    };
    const one = ["a file", "fifo other", "link symlink", "sub directory"];
    assert.deepEqual(await names({}), one);
    assert.deepEqual(await names({ includeHidden: true }), [".hidden file", ...one]);
    assert.deepEqual(await names({ recursive: true }), [...one, "sub/b file"]);
    assert.equal((await names({ recursive: true, includeHidden: true })).length, 8);
    const { files } = await post("/api/list-files", { path: "/workspace/list" });
    const [a] = files as Record<string, unknown>[];
    assert.ok(Number.isFinite(Date.parse(String(a?.["modifiedAt"]))));
    delete a?.["modifiedAt"];
    assert.deepEqual(a, {
      name: "a",
      absolutePath: "/workspace/list/a",
      relativePath: "a",
      type: "file",
      size: 3,
      mode: "rw-r-----",
      permissions: { readable: true, writable: true, executable: false },
    });
    await refused("/api/list-files", { path: "/none" }, 404, "FILE_NOT_FOUND");
    await refused("/api/list-files", { path: "/workspace/list/a" }, 400, "NOT_DIRECTORY");
    await run("mkdir huge; cd huge; touch $(seq 1 301)");
    await refused("/api/list-files", { path: "/workspace/huge" }, 400, "VALIDATION_FAILED");
  });

  it("files are renamed, moved over others, and deleted; directories are not deleted", async () => {
    await post("/api/write", { path: "/workspace/old", content: "old" });
    await post("/api/write", { path: "/workspace/other", content: "other" });
    assert.deepEqual(await post("/api/rename", { oldPath: "/workspace/old", newPath: "/workspace/new1" }), {
      success: true,
      path: "/workspace/old",
      newPath: "/workspace/new1",
    });
    const moved = { sourcePath: "/workspace/new1", destinationPath: "/workspace/other" };
    assert.deepEqual(await post("/api/move", moved), {
      success: true,
      path: "/workspace/new1",
      newPath: "/workspace/other",
    });
    assert.equal((await post("/api/read", { path: "/workspace/other" }))["content"], "old");
    await refused("/api/move", moved, 404, "FILE_NOT_FOUND");
    const intoDirectory = { sourcePath: "/workspace/other", destinationPath: "/workspace/list" };
    await refused("/api/move", intoDirectory, 400, "IS_DIRECTORY");
    await post("/api/delete", { path: "/workspace/other" });
    await refused("/api/delete", { path: "/workspace/other" }, 404, "FILE_NOT_FOUND");
    await refused("/api/delete", { path: "/workspace/list" }, 400, "IS_DIRECTORY");
    await run("ln -s list to-list; ln -s none dangling");
    assert.equal((await post("/api/exists", { path: "/workspace/to-list" }))["exists"], true);
    assert.equal((await post("/api/exists", { path: "/workspace/dangling" }))["exists"], false);
    await post("/api/delete", { path: "/workspace/to-list" });
    assert.equal((await post("/api/exists", { path: "/workspace/list/a" }))["exists"], true);
  });

  it("hostile requests are refused in the interface's form", async () => {
    await run("ln -s loop loop; mkfifo fifo");
    const routes = [
      ["/api/read", "path", {}],
      ["/api/read/stream", "path", {}],
      ["/api/write", "path", { content: "" }],
      ["/api/mkdir", "path", {}],
      ["/api/list-files", "path", {}],
      ["/api/exists", "path", {}],
      ["/api/delete", "path", {}],
      ["/api/rename", "oldPath", { newPath: "/workspace/x" }],
      ["/api/move", "destinationPath", { sourcePath: "/workspace/x" }],
    ] as const;
    for (const [route, field, rest] of routes) {
      for (const value of [undefined, null, 1, {}, [], "", "a\0b", "x".repeat(2 ** 20)]) {
        await refused(route, { ...rest, [field]: value }, 400, "VALIDATION_FAILED");
      }
      await refused(route, { ...rest, [field]: `/${"n".repeat(256)}` }, 400, "NAME_TOO_LONG");
      for (const body of ["{", "[]", "null", '"x"']) await refused(route, body, 400, "VALIDATION_FAILED");
      await refused(route, { ...rest, [field]: "/x", sessionId: 1 }, 400, "VALIDATION_FAILED");
    }
    await refused("/api/read", { path: "/workspace/loop" }, 400, "VALIDATION_FAILED");
    await refused("/api/read", { path: "/workspace/fifo" }, 400, "VALIDATION_FAILED");
    await refused("/api/read", { path: "/workspace" }, 400, "IS_DIRECTORY");
    await refused("/api/write", { path: "/workspace", content: "" }, 400, "IS_DIRECTORY");
    await refused("/api/read", { path: "/x", encoding: "latin1" }, 400, "VALIDATION_FAILED");
    await refused("/api/write", { path: "/x", content: 1 }, 400, "VALIDATION_FAILED");
    await refused("/api/read", { path: "../../../../../../../../etc/no-such-file" }, 404, "FILE_NOT_FOUND");
    assert.equal((await post("/api/exists", { path: "/workspace/loop" }))["exists"], false);
    assert.equal((await shell.json("GET", "/api/ping"))["success"], true);
  });
});
