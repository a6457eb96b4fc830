import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import files from "@coppice/plugin-files";
import { startShellServer } from "../testing/shell-server.js";

describe("changes of files over HTTP", { timeout: 60_000 }, () => {
  it("come as they happen, those that are wanted", async () => {
    await using shell = await startShellServer({}, [[files, {}]]);
    await shell.json("POST", "/api/mkdir", { path: "/workspace/.git", recursive: true });
    const leaving = new AbortController();
    const answer = await fetch(`${shell.url}/api/watch`, {
      method: "POST",
      body: JSON.stringify({ path: "/workspace", events: ["create", "delete"] }),
      signal: leaving.signal,
    });
    const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
    const next = async (): Promise<Record<string, unknown>> => {
      const { value } = (await reader?.read()) ?? {};
      return JSON.parse((value ?? "").replace(/^data: /, "")) as Record<string, unknown>;
    };
    const watching = await next();
    assert.deepEqual([watching["type"], watching["path"]], ["watching", "/workspace"]);
    assert.ok(watching["watchId"]);
    await shell.json("POST", "/api/write", { path: "/workspace/.git/index", content: "" });
    await shell.json("POST", "/api/write", { path: "/workspace/sub", content: "text" });
    const created = await next();
    assert.deepEqual(
      [created["type"], created["eventType"], created["path"], created["isDirectory"]],
      ["event", "create", "/workspace/sub", false],
    );
    await shell.json("POST", "/api/delete", { path: "/workspace/sub" });
    const deleted = await next();
    assert.deepEqual([deleted["eventType"], deleted["path"]], ["delete", "/workspace/sub"]);
    leaving.abort();

    for (const [body, status, code] of [
      [{ path: "/none" }, 404, "FILE_NOT_FOUND"],
      [{ path: "/workspace/.git/index" }, 400, "NOT_DIRECTORY"],
      [{ path: 1 }, 400, "VALIDATION_FAILED"],
      [{ path: "/workspace", events: ["other"] }, 400, "VALIDATION_FAILED"],
      [{ path: "/workspace", include: "x" }, 400, "VALIDATION_FAILED"],
      [{ path: "/workspace", include: ["*.{ts,js}"] }, 400, "VALIDATION_FAILED"],
      [{ path: "/workspace", exclude: Array(10).fill("x".repeat(256)) }, 400, "VALIDATION_FAILED"],
    ] as const)
      assert.equal((await shell.json("POST", "/api/watch", body, status))["code"], code);
  });

  it("are counted between two questions, until nobody has asked for some time", async () => {
    await using shell = await startShellServer({ changesKept: "2s" }, [[files, {}]]);
    await shell.json("POST", "/api/write", { path: "/workspace/dir/a", content: "" });
    const check = async (since?: unknown) => {
      const answer = await shell.json("POST", "/api/watch/check", { path: "/workspace/dir", since });
      assert.equal(answer["success"], true);
      return answer;
    };
    const { status, version } = await check();
    assert.equal(status, "unchanged");
    assert.equal((await check(version))["status"], "unchanged");
    await shell.json("POST", "/api/write", { path: "/workspace/dir/b", content: "" });
    let changed = await check(version);
    while (changed["status"] === "unchanged") changed = await check(version);
    assert.equal(changed["status"], "changed");
    const { reason } = await check("another-server.0.0");
    assert.equal(reason, "restarted");
    await delay(2_500);
    const expired = await check(version);
    assert.deepEqual([expired["status"], expired["reason"]], ["resync", "expired"]);
    assert.equal((await check(expired["version"]))["status"], "unchanged");
    const missing = await shell.json("POST", "/api/watch/check", { path: "/none" }, 404);
    assert.equal(missing["code"], "FILE_NOT_FOUND");
    await shell.json("POST", "/api/watch/check", { path: "/workspace", since: 1 }, 400);
  });

  it("have no route without the plugin that watches, like routes that are gone", async () => {
    await using shell = await startShellServer();
    for (const path of [
      "/api/watch",
      "/api/expose-port",
      "/api/desktop/start",
      "/api/backup/create",
      "/api/none",
    ]) {
      const { code, httpStatus, context } = await shell.json("POST", path, { path: "/workspace" }, 404);
      assert.deepEqual([code, httpStatus, context], ["UNKNOWN_ERROR", 404, {}]);
    }
  });
});
