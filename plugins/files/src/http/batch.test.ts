import assert from "node:assert/strict";
import { after, before, it } from "node:test";
import { type FilesServer, startFilesServer } from "../testing/files-server.js";

let files: FilesServer;
before(async () => {
  files = await startFilesServer({ settings: { maxFilesPerUpload: 20, maxBatch: "64KiB" } });
});
after(async () => files[Symbol.asyncDispose]());

async function batch(
  body: unknown,
  query = "",
): Promise<{ readonly status: number; readonly body: unknown }> {
  const response = await files.fetch(`/files/batch${query}`, { method: "POST", body: JSON.stringify(body) });
  return { status: response.status, body: await response.json() };
}

async function bytesOf(path: string): Promise<Buffer> {
  const response = await files.fetch(`/files?path=${encodeURIComponent(path)}`);
  assert.equal(response.status, 200, path);
  return Buffer.from(await response.arrayBuffer());
}

it("Every entry of a batch is written, and a bad one spoils none of the others", async () => {
  const binary = Buffer.from([0, 255, 10, 13, 128]);
  const answer = await batch([
    { path: "text", content: "größer" },
    { path: "/tmp/binary", content_b64: binary.toString("base64") },
    { path: "empty", content: "" },
    { path: "text/below", content: "x" },
    { path: "text", content: "again" },
    { path: "neither" },
    { path: "both", content: "x", content_b64: "eA==" },
    { path: "odd", content_b64: "not base64!" },
    { content: "no path" },
    "no object",
    { path: "nul\0", content: "x" },
    { path: "last", content: "l" },
  ]);
  assert.equal(answer.status, 200);
  const results = answer.body as {
    ok: boolean;
    status: number;
    path: string;
    error?: string;
    bytes?: number;
  }[];
  assert.deepEqual(
    results.map(({ ok, status, path }) => [ok, status, path]),
    [
      [true, 200, "/home/user/text"],
      [true, 200, "/tmp/binary"],
      [true, 200, "/home/user/empty"],
      [false, 500, "text/below"],
      [false, 400, "text"],
      [false, 400, "neither"],
      [false, 400, "both"],
      [false, 400, "odd"],
      [false, 400, ""],
      [false, 400, ""],
      [false, 400, "nul\0"],
      [true, 200, "/home/user/last"],
    ],
  );
  assert.deepEqual(results[0], { path: "/home/user/text", ok: true, status: 200, bytes: 8 });
  assert.equal(results[3]?.error, "error ensuring directories: path is a file: /home/user/text");
  for (const { ok, error } of results) assert.equal(typeof error, ok ? "undefined" : "string");
  assert.equal(String(await bytesOf("text")), "größer");
  assert.deepEqual(await bytesOf("/tmp/binary"), binary);
  assert.equal((await bytesOf("empty")).length, 0);
});

it("Paths of a batch are the named user's", async () => {
  const answer = await batch([{ path: "mine", content: "r" }], "?username=root");
  assert.deepEqual(answer.body, [{ path: "/root/mine", ok: true, status: 200, bytes: 1 }]);
  assert.equal((await batch([], "?username=nobody-here")).status, 401);
});

it("A batch is bounded, and is an array", async () => {
  assert.deepEqual(await batch([]), { status: 200, body: [] });
  assert.equal((await batch({})).status, 400);
  assert.equal((await batch(Array(21).fill({}))).status, 400);
  assert.equal((await batch([{ path: "big", content: "x".repeat(2 ** 16) }])).status, 413);
});
