import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { chmod, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import type { Logger } from "@coppice/core";
import { keptDevelopmentKey, newApiKey } from "./key-store.js";

interface Folder extends AsyncDisposable {
  readonly file: string;
  readonly warnings: readonly unknown[];
  readonly key: () => Promise<string>;
}

async function makeFolder(): Promise<Folder> {
  const directory = await mkdtemp(join(tmpdir(), "coppice-key-"));
  const file = join(directory, "development-key");
  const warnings: unknown[] = [];
  const log = { warn: (...words: unknown[]) => warnings.push(words) } as unknown as Logger;
  return {
    file,
    warnings,
    key: () => keptDevelopmentKey(file, log),
    [Symbol.asyncDispose]: () => rm(directory, { recursive: true, force: true }),
  };
}

describe("the development key", () => {
  it("is made once, for this user alone, also by concurrent callers", async () => {
    await using folder = await makeFolder();
    const keys = await Promise.all(Array.from({ length: 20 }, folder.key));
    assert.equal(new Set(keys).size, 1);
    assert.match(keys[0] ?? "", /^e2b_[0-9a-f]{40}$/);
    assert.equal((await stat(folder.file)).mode & 0o777, 0o600);
    assert.equal(await readFile(folder.file, "utf8"), `${keys[0]}\n`);
    assert.deepEqual(await readdir(join(folder.file, "..")), ["development-key"]);
    assert.equal(await folder.key(), keys[0]);
    assert.deepEqual(folder.warnings, []);
  });

  it("is made private with a warning where others could read it", async () => {
    await using folder = await makeFolder();
    const kept = newApiKey();
    await writeFile(folder.file, kept);
    await chmod(folder.file, 0o644);
    assert.equal(await folder.key(), kept);
    assert.equal((await stat(folder.file)).mode & 0o777, 0o600);
    assert.equal(folder.warnings.length, 1);
    assert.equal(await folder.key(), kept);
    assert.equal(folder.warnings.length, 1);
  });

  it("is neither read from another user's file, nor written over it", async () => {
    await using folder = await makeFolder();
    const elsewhere = `${folder.file}.elsewhere`;
    const refused = (why: RegExp) => assert.rejects(folder.key(), why);
    await writeFile(elsewhere, newApiKey());
    await symlink(elsewhere, folder.file);
    await refused(/development-key cannot be used: ELOOP/);
    await rm(folder.file);
    for (const text of ["", "\n", "e2b_", "e2b_0123", `local${newApiKey()}`, "x".repeat(5000)]) {
      await writeFile(folder.file, text, { mode: 0o600 });
      await refused(/cannot be used: it (holds no key; remove it|is no file of a key)/);
      assert.equal(await readFile(folder.file, "utf8"), text);
    }
    await rm(folder.file);
    execFileSync("mkfifo", [folder.file]);
    await refused(/it is no file of a key/);
  });
});
