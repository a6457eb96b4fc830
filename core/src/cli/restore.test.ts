import assert from "node:assert/strict";
import { createWriteStream } from "node:fs";
import { mkdtemp, readdir, rm, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import { it } from "node:test";
import { type Headers, pack } from "tar-stream";
import { restore } from "./restore.js";

async function makeArchive(path: string, entries: readonly (readonly [Headers, string])[]): Promise<void> {
  const tar = pack();
  for (const [header, content] of entries) tar.entry(header, content);
  tar.finalize();
  await pipeline(tar, createWriteStream(path));
}

it("changes nothing for an archive that is cut, hostile, changed or newer", async (context) => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-restore-"));
  const configFile = join(directory, "coppice.yaml");
  const listeners = { api: { host: "127.0.0.1", port: 0 } };
  await writeFile(configFile, JSON.stringify({ listeners, dataDir: join(directory, "data"), plugins: {} }));
  const told = context.mock.method(process.stderr, "write", () => true);
  const archive = join(directory, "bad.tar");
  const facts = {
    format: 1,
    version: "0.0.1",
    madeAt: "",
    owner: { uid: 0, gid: 0 },
    files: [] as unknown[],
  };
  const manifest = (changes: object = {}) =>
    [{ name: "manifest.json" }, JSON.stringify({ ...facts, ...changes })] as const;
  const refuses = async (reason: RegExp): Promise<void> => {
    told.mock.resetCalls();
    assert.equal(await restore(configFile, archive, {}), 1);
    assert.match(told.mock.calls.map((call) => String(call.arguments[0])).join(""), reason);
    assert.deepEqual(await readdir(directory), ["bad.tar", "coppice.yaml"]);
  };
  try {
    for (const name of ["data/../../out", "/etc/out", "data//out", "data/a/./b", "elsewhere"]) {
      await makeArchive(archive, [[{ name }, "x"], manifest()]);
      await refuses(/which is not of a backup/);
    }
    await makeArchive(archive, [[{ name: "data/link", type: "symlink", linkname: "/etc" }, ""], manifest()]);
    await refuses(/the archive has a symlink/);
    await makeArchive(archive, [
      [{ name: "data/link", type: "link", linkname: "/etc/passwd" }, ""],
      manifest(),
    ]);
    await refuses(/the archive has a link/);
    await makeArchive(archive, [
      [{ name: "data/a" }, "x"],
      manifest({ files: [{ path: "a", sha256: "0" }] }),
    ]);
    await refuses(/"a" is not what the manifest says/);
    await makeArchive(archive, [[{ name: "data/a" }, "x"], manifest()]);
    await refuses(/the manifest does not have "a"/);
    await makeArchive(archive, [[{ name: "data/a" }, "x"], [{ name: "data/a" }, "y"], manifest()]);
    await refuses(/EEXIST/);
    await makeArchive(archive, [manifest(), [{ name: "data/a" }, "x"]]);
    await refuses(/goes on after its manifest/);
    await makeArchive(archive, [manifest({ version: "999.0.0" })]);
    await refuses(/newer version of Coppice \(999\.0\.0/);
    await makeArchive(archive, [[{ name: "data/a" }, "x".repeat(5000)]]);
    await refuses(/its manifest is missing/);
    await truncate(archive, 3000);
    await refuses(/nothing was restored: /);
    await writeFile(archive, "no archive".repeat(200));
    await refuses(/nothing was restored: /);
  } finally {
    await rm(directory, { recursive: true });
  }
});
