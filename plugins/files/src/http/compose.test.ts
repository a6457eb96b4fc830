import assert from "node:assert/strict";
import { symlink } from "node:fs/promises";
import { join } from "node:path";
import { after, before, it } from "node:test";
import { type FilesServer, startFilesServer } from "../testing/files-server.js";

let files: FilesServer;
before(async () => {
  files = await startFilesServer({ settings: { maxFilesPerUpload: 20 } });
});
after(async () => files[Symbol.asyncDispose]());

async function compose(body: unknown): Promise<{ readonly status: number; readonly body: unknown }> {
  const response = await files.fetch("/files/compose", { method: "POST", body: JSON.stringify(body) });
  return { status: response.status, body: await response.json() };
}

async function contentOf(path: string): Promise<string | number> {
  const response = await files.fetch(`/files?path=${encodeURIComponent(path)}`);
  return response.ok ? response.text() : response.status;
}

const refusal = (status: number, message: string) => ({ status, body: { code: status, message } });

it("Files are joined in the order given, over what was there, and are gone then", async () => {
  await files.put("part-1", "one ");
  await files.put("/tmp/part-2", "two ");
  await files.put("part-3", "");
  await files.put("whole", "a longer text that was there before");
  const answer = await compose({
    source_paths: ["part-1", "/tmp/part-2", "part-3", "part-1"],
    destination: "whole",
  });
  assert.deepEqual(answer, {
    status: 200,
    body: { path: "/home/user/whole", name: "whole", type: "file" },
  });
  assert.equal(await contentOf("whole"), "one two one ");
  for (const source of ["part-1", "/tmp/part-2", "part-3"])
    assert.equal(await contentOf(source), 404, source);
});

it("The destination's parents are made and paths are the named user's", async () => {
  await files.put("/root/part", "r");
  const answer = await compose({ source_paths: ["part"], destination: "new/dir/whole", username: "root" });
  assert.deepEqual(answer.body, { path: "/root/new/dir/whole", name: "whole", type: "file" });
  assert.equal(await contentOf("/root/new/dir/whole"), "r");
});

it("An impossible composition is refused in envd's words and changes nothing", async () => {
  await files.put("kept", "k");
  await files.put("dir/inside", "i");
  const home = await files.hostPath("/home/user");
  await symlink("dir", join(home, "link-to-dir"));
  await symlink("kept", join(home, "link-to-kept"));
  const path = (name: string): string => `/home/user/${name}`;
  const refused: [unknown, number, string][] = [
    [{ destination: "x" }, 400, "source_paths must not be empty"],
    [{ source_paths: [], destination: "x" }, 400, "source_paths must not be empty"],
    [{ source_paths: ["kept"] }, 400, "destination is required"],
    [{ source_paths: Array(21).fill("kept"), destination: "x" }, 400, "one request can compose 20 files"],
    [
      { source_paths: ["kept", "missing"], destination: "x" },
      404,
      `source file not found: ${path("missing")}`,
    ],
    [
      { source_paths: ["kept", "kept/below"], destination: "x" },
      404,
      `source file not found: ${path("kept/below")}`,
    ],
    [
      { source_paths: ["kept", "dir"], destination: "x" },
      400,
      `source path is not a regular file: ${path("dir")}`,
    ],
    [{ source_paths: ["kept"], destination: "dir" }, 400, `path is a directory: ${path("dir")}`],
    ...[
      ["kept", "./kept"],
      ["kept", "/home/user//dir/../kept"],
      ["kept", "link-to-kept"],
      ["link-to-dir/inside", "dir/inside"],
    ].map(([source = "", destination]): [unknown, number, string] => [
      { source_paths: [source], destination },
      400,
      `source path is the destination: ${path(source)}`,
    ]),
    [
      { source_paths: ["kept"], destination: "x", username: "nobody-here" },
      401,
      "error looking up user 'nobody-here': user: unknown user nobody-here",
    ],
  ];
  for (const [body, status, message] of refused) {
    assert.deepEqual(await compose(body), refusal(status, message), JSON.stringify(body).slice(0, 200));
  }
  assert.equal((await compose("no object")).status, 400);
  assert.equal(await contentOf("kept"), "k");
  assert.equal(await contentOf("dir/inside"), "i");
  assert.equal(await contentOf("x"), 404);
});

it("A composed link is removed, and its target stays", async () => {
  await files.put("behind", "b");
  await symlink("behind", join(await files.hostPath("/home/user"), "link-to-behind"));
  const answer = await compose({ source_paths: ["link-to-behind"], destination: "from-link" });
  assert.equal(answer.status, 200);
  assert.equal(await contentOf("from-link"), "b");
  assert.equal(await contentOf("behind"), "b");
  assert.equal(await contentOf("link-to-behind"), 404);
});
