import assert from "node:assert/strict";
import { mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { replaceFile } from "./files.js";

it("a file is replaced as a whole with its mode, and a failure leaves nothing beside it", async () => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
  const path = join(directory, "key");
  try {
    // As a crash leaves it.
    await writeFile(`${path}.new`, "half of a longer text", { mode: 0o644 });
    await replaceFile(path, "whole", { mode: 0o600, flush: true });
    assert.equal(await readFile(path, "utf8"), "whole");
    assert.equal((await stat(path)).mode & 0o777, 0o600);
    const taken = join(directory, "taken");
    await mkdir(taken);
    await assert.rejects(replaceFile(taken, "text", { mode: 0o600 }), { code: "EISDIR" });
    assert.deepEqual((await readdir(directory)).toSorted(), ["key", "taken"]);
  } finally {
    await rm(directory, { recursive: true });
  }
});
