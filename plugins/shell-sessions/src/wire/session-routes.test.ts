import assert from "node:assert/strict";
import { it } from "node:test";
import { startShellServer } from "../testing/shell-server.js";

it(
  "sessions are made once, keep their variables, and are gone when deleted",
  { timeout: 60_000 },
  async () => {
    await using shell = await startShellServer();
    const create = (body: unknown, status?: number) =>
      shell.json("POST", "/api/session/create", body, status);
    const made = await create({ id: "one", env: { SECRET: "it's" }, cwd: "/usr" });
    assert.deepEqual([made["data"], made["containerPlacementId"]], [{ id: "one" }, null]);
    const { code, context } = await create({ id: "one" }, 409);
    assert.deepEqual(
      [code, context],
      ["SESSION_ALREADY_EXISTS", { sessionId: "one", containerPlacementId: null }],
    );
    const { stdout } = await shell.json("POST", "/api/execute", {
      command: 'echo "$SECRET $PWD"',
      sessionId: "one",
    });
    assert.equal(stdout, "it's /usr");
    const { id } = (await create("{"))["data"] as { readonly id: string };
    assert.match(id, /^session_\d+_[0-9a-f]{12}$/);
    assert.equal((await create({ id: 7 }, 400))["code"], "VALIDATION_FAILED");
    assert.deepEqual((await shell.json("GET", "/api/session/list"))["data"], ["one", id]);
    await shell.json("POST", "/api/session/delete", { sessionId: "one" });
    assert.equal((await shell.json("POST", "/api/session/delete", {}, 400))["code"], "VALIDATION_FAILED");
    assert.equal(
      (await shell.json("POST", "/api/session/delete", { sessionId: "one" }, 500))["code"],
      "INTERNAL_ERROR",
    );
  },
);
