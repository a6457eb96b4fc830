import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readdir, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, it } from "node:test";
import { openSocketDirectory } from "./socket-directory.js";

describe("the directory of a server's sockets", () => {
  let parent: string;

  beforeEach(async () => {
    parent = await mkdtemp(join(tmpdir(), "coppice-sd-"));
  });
  afterEach(() => rm(parent, { recursive: true, force: true }));

  it("is private, and gone after it was disposed of", async () => {
    const directory = await openSocketDirectory(parent);
    assert.equal((await stat(directory.path)).mode & 0o777, 0o700);
    await directory[Symbol.asyncDispose]();
    assert.deepEqual(await readdir(parent), []);
  });

  it("is removed by the next server after a kill -9, with all that is in it", async () => {
    const program = `
      const { openSocketDirectory } = await import(${JSON.stringify(import.meta.resolve("./socket-directory.js"))});
      console.log((await openSocketDirectory(${JSON.stringify(parent)})).path);
      setInterval(() => {}, 1000);`;
    const child = spawn(process.execPath, ["--input-type=module", "-e", program], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    const [printed] = (await once(child.stdout, "data")) as [Buffer];
    const abandoned = String(printed).trim();
    await writeFile(join(abandoned, "left"), "");
    child.kill("SIGKILL");
    await once(child, "exit");
    assert.ok((await stat(abandoned)).isDirectory());

    await using directory = await openSocketDirectory(parent);
    assert.deepEqual(await readdir(parent), [directory.path.split("/").at(-1)]);
  });

  it("is left alone while its server lives", async () => {
    await using first = await openSocketDirectory(parent);
    await using second = await openSocketDirectory(parent);
    assert.equal((await readdir(parent)).length, 2);
    assert.notEqual(first.path, second.path);
  });
});
