import assert from "node:assert/strict";
import { chmod, mkdir, mkdtemp, readdir, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { removeTree } from "./remove-tree.js";

it("a tree of any depth is removed, with nothing left in the stage, without following links", async (context) => {
  const folder = await mkdtemp(join(tmpdir(), "coppice-tree-"));
  context.after(() => rm(folder, { recursive: true, force: true }));
  const [stage, tree, kept] = [join(folder, "stage"), join(folder, "tree"), join(folder, "kept")];
  await mkdir(stage);
  await writeFile(kept, "kept");
  const deepest = join(tree, ...Array<string>(200).fill("d"));
  await mkdir(deepest, { recursive: true });
  await writeFile(join(deepest, "file"), "x");
  await symlink(folder, join(tree, "link"));
  await chmod(join(tree, "d"), 0o000);
  await removeTree(tree, stage);
  assert.deepEqual((await readdir(folder)).toSorted(), ["kept", "stage"]);
  assert.deepEqual(await readdir(stage), []);
  await removeTree(tree, stage);
});
