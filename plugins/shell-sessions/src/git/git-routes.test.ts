import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, describe, it } from "node:test";
import { type ShellServer, startShellServer } from "../testing/shell-server.js";

const skip = existsSync("/usr/bin/git") ? false : "it needs git";

describe("git over HTTP", { skip, timeout: 120_000 }, () => {
  let shell: ShellServer;
  let source: string;
  before(async () => {
    shell = await startShellServer();
    const command = `git init -q -b trunk source && cd source && git config user.name n && git config user.email e@localhost &&
      echo 1 > file && git add . && git commit -qm one && git branch other && echo 2 > file && git commit -qam two && pwd`;
    const { stdout, stderr } = await shell.json("POST", "/api/execute", { command: `(${command})` });
    source = String(stdout);
    assert.match(source, /^\/.*source$/, String(stderr));
  });
  after(() => shell[Symbol.asyncDispose]());

  const checkout = async (body: object, status = 200) => {
    const answer = await shell.json("POST", "/api/git/checkout", body, status);
    delete answer["timestamp"];
    return answer;
  };
  const read = async (path: string) => (await shell.json("POST", "/api/read", { path }))["content"];

  it("a repository is cloned, with its branch", async () => {
    assert.deepEqual(await checkout({ repoUrl: source, targetDir: "/workspace/new/clone" }), {
      success: true,
      repoUrl: source,
      branch: "trunk",
      targetDir: "/workspace/new/clone",
    });
    assert.equal(await read("/workspace/new/clone/file"), "2\n");
    const url = `file://${source}`;
    const { branch, targetDir } = await checkout({
      repoUrl: url,
      branch: "other",
      depth: 1,
      targetDir: "short",
    });
    assert.deepEqual([branch, targetDir], ["other", "/workspace/short"]);
    assert.equal(await read("/workspace/short/file"), "1\n");
    const command = "git -C short rev-list --count --all";
    assert.equal((await shell.json("POST", "/api/execute", { command }))["stdout"], "1");
  });

  it("without a directory the repository's name is taken", async () => {
    const { targetDir } = await checkout({ repoUrl: `file://${source}/.git`, sessionId: "other" });
    assert.equal(targetDir, "/workspace/repository");
    const again = await checkout({ repoUrl: source, targetDir: "/workspace/repository" }, 409);
    assert.equal(again["code"], "FILE_EXISTS");
  });

  it("failures have their codes, and no credentials", async () => {
    const missing = await checkout({ repoUrl: "/none/repo" }, 404);
    assert.equal(missing["code"], "GIT_REPOSITORY_NOT_FOUND");
    const branch = await checkout({ repoUrl: source, branch: "none", targetDir: "b" }, 404);
    assert.equal(branch["code"], "GIT_BRANCH_NOT_FOUND");
    const server = createServer((_, response) => {
      response.writeHead(401, { "www-authenticate": "Basic" }).end();
    }).listen(0, "127.0.0.1");
    await new Promise((resolve) => void server.once("listening", resolve));
    const { port } = server.address() as AddressInfo;
    const repoUrl = `http://me:s3cret@127.0.0.1:${port}/repo`;
    const refused = await checkout({ repoUrl }, 401);
    server.close();
    assert.equal(refused["code"], "GIT_AUTH_FAILED");
    assert.doesNotMatch(JSON.stringify(refused), /s3cret/);
    assert.equal((await checkout({ repoUrl }, 502))["code"], "GIT_NETWORK_ERROR");
  });

  it("a clone is ended after its time, and leaves nothing", async () => {
    const server = createServer(() => undefined).listen(0, "127.0.0.1");
    await new Promise((resolve) => void server.once("listening", resolve));
    const { port } = server.address() as AddressInfo;
    const body = { repoUrl: `http://127.0.0.1:${port}/slow`, timeoutMs: 500 };
    const overdue = await checkout(body, 500);
    server.closeAllConnections();
    server.close();
    assert.equal(overdue["code"], "GIT_CLONE_FAILED");
    assert.match(String(overdue["message"]), /timed out after 500 ms/);
    assert.equal((await shell.json("POST", "/api/exists", { path: "/workspace/slow" }))["exists"], false);
  });

  it("options and programs in place of a repository are refused", async () => {
    for (const repoUrl of [
      "",
      " ",
      "--upload-pack=touch pwned",
      "-x",
      "ext::touch% pwned",
      "a\0b",
      "a\nb",
      "x".repeat(2 ** 20),
    ])
      assert.equal((await checkout({ repoUrl }, 400))["code"], "INVALID_GIT_URL", repoUrl.slice(0, 50));
    for (const wrong of [
      { branch: "--upload-pack=touch pwned" },
      { branch: "a b" },
      { branch: 1 },
      { depth: 0 },
      { depth: "1" },
      { timeoutMs: 0 },
      { targetDir: "" },
      { targetDir: "/" },
      { targetDir: "a\0b" },
      { targetDir: "/workspace/../.." },
      { repoUrl: 1 },
    ])
      assert.equal((await checkout({ repoUrl: source, ...wrong }, 400))["code"], "VALIDATION_FAILED");
    // A name that looks like an option is a name.
    assert.equal((await checkout({ repoUrl: source, targetDir: "/workspace/--bare" }))["success"], true);
    assert.equal(await read("/workspace/--bare/file"), "2\n");
  });
});
