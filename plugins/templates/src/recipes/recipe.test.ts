import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { recipeSettings } from "../model/recipe-settings.js";
import { readRecipe } from "./recipe.js";

const YAML = `
# comment
from:
  debian: { suite: trixie, packages: [curl, libstdc++6] }
steps: |
  ENV A=1
  RUN true
start: python3 -m http.server
`;

it("a recipe is read from a file or the configuration, and equal ones have one digest", async (context) => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-recipe-"));
  context.after(() => rm(directory, { recursive: true, force: true }));
  const path = join(directory, "recipe.yaml");
  await writeFile(path, YAML);
  const read = await readRecipe(path);
  assert.deepEqual(read.base, { kind: "debian", suite: "trixie", packages: ["curl", "libstdc++6"] });
  assert.deepEqual(
    read.steps.map(({ type, args }) => [type, ...args]),
    [
      ["ENV", "A", "1"],
      ["RUN", "true"],
    ],
  );
  assert.equal(read.startCommand, "python3 -m http.server");
  const settings = {
    from: { debian: { suite: "trixie", packages: ["curl", "libstdc++6"] } },
    steps: "ENV A=1\nRUN true\n",
    start: "python3 -m http.server",
  };
  assert.equal((await readRecipe(recipeSettings.parse(settings))).digest, read.digest);
  const other = recipeSettings.parse({ ...settings, steps: "ENV A=2\n" });
  assert.notEqual((await readRecipe(other)).digest, read.digest);
  await writeFile(path, "from: { image: x, debian: {} }\nstep: RUN true\n");
  await assert.rejects(readRecipe(path), (error: Error) => error.message.startsWith(`${path}: `));
  await assert.rejects(readRecipe(join(directory, "missing.yaml")), /missing.yaml: ENOENT/);
});

for (const wrong of [
  { from: { debian: { suite: "--help" } } },
  { from: { debian: { suite: "trixie", packages: ["a,b"] } } },
  { from: { debian: { suite: "trixie", packages: ["--x"] } } },
  { from: { image: "" } },
  {},
]) {
  it(`${JSON.stringify(wrong)} is refused`, () => {
    assert.equal(recipeSettings.safeParse(wrong).success, false);
  });
}

it("steps with an image of their own are refused", async () => {
  const settings = recipeSettings.parse({ from: { template: "base" }, steps: "FROM debian:12\n" });
  await assert.rejects(readRecipe(settings), /^Error: FROM: the recipe itself says/);
});
