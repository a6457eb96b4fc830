import assert from "node:assert/strict";
import { mkdir, mkdtemp, rm, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { ARCHITECTURE } from "../images/host-programs.js";
import { formatLock } from "../model/contents-lock.js";
import { recipeSettings } from "../templates-config.js";
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

it("a recipe has the lock file beside it, and is another one where that or a snapshot has to be met", async (context) => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-recipe-"));
  context.after(() => rm(directory, { recursive: true, force: true }));
  const path = join(directory, "web.recipe.yaml");
  const debian = { suite: "trixie", packages: ["curl"] };
  const write = async (snapshot?: string) =>
    writeFile(path, JSON.stringify({ from: { debian: { ...debian, ...(snapshot && { snapshot }) } } }));
  const digests = async () =>
    Promise.all(
      (["ignore", "prefer", "require"] as const).map(async (pins) => (await readRecipe(path, pins)).digest),
    );
  await write();
  assert.equal(new Set(await digests()).size, 1);
  assert.equal((await readRecipe(path, "require")).lock, undefined);
  await write("20261124T060000Z");
  assert.equal(new Set(await digests()).size, 3);
  await write();
  const contents = ["deb bash 5.2", "pip numpy 2.4.6"];
  const lock = join(directory, "web.recipe.lock");
  await writeFile(lock, formatLock({ architecture: ARCHITECTURE, contents }));
  assert.deepEqual((await readRecipe(path, "prefer")).lock, { contents, severity: "warn" });
  assert.deepEqual((await readRecipe(path, "require")).lock, { contents, severity: "error" });
  const [ignored, preferred, required] = await digests();
  assert.deepEqual([ignored === preferred, preferred === required], [true, false]);
  await writeFile(lock, formatLock({ architecture: "other", contents }));
  assert.equal((await readRecipe(path, "require")).lock, undefined);
  for (const [text, reason] of [
    [`architecture ${ARCHITECTURE}\ndeb bash\n`, /web\.recipe\.lock: line 2: expected a kind/],
    ["deb bash 5.2\n", /web\.recipe\.lock: it names no architecture$/],
  ] as const) {
    await writeFile(lock, text);
    await assert.rejects(readRecipe(path), reason);
  }
});

it("a recipe of a file copies what is beside it, and another one of changed files", async (context) => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-recipe-"));
  context.after(() => rm(directory, { recursive: true, force: true }));
  const path = join(directory, "recipe.yaml");
  const read = async (steps: string) => {
    await writeFile(path, JSON.stringify({ from: { template: "base" }, steps }));
    return readRecipe(path);
  };
  await mkdir(join(directory, "app"));
  await writeFile(join(directory, "app", "main.py"), "1");
  const first = await read("COPY --chmod=755 app /app/");
  assert.equal(first.folder, directory);
  const [step] = first.steps;
  assert.deepEqual([step?.type, step?.args], ["COPY", ["app", "/app/", "", "755"]]);
  assert.match(step?.filesHash ?? "", /^[0-9a-f]{64}$/);
  assert.deepEqual(await read("COPY --chmod=755 app /app/"), first);
  await writeFile(join(directory, "app", "main.py"), "2");
  const second = await read("COPY --chmod=755 app /app/");
  assert.notEqual(second.digest, first.digest);
  assert.notEqual(second.steps[0]?.filesHash, step?.filesHash);
  for (const [steps, reason] of [
    ["COPY missing /", /^Error: COPY missing: the folder has no such file$/],
    ["COPY *.txt /", /^Error: COPY \*\.txt: the folder has no such file$/],
    ["COPY ../secret /", /outside of the folder/],
  ] as const)
    await assert.rejects(read(steps), reason);
  const inPlace = recipeSettings.parse({ from: { template: "base" }, steps: "COPY a b" });
  await assert.rejects(readRecipe(inPlace), /has no folder/);
});

it("a recipe may be a Dockerfile, or start from a directory, each named relative to it", async (context) => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-recipe-"));
  context.after(() => rm(directory, { recursive: true, force: true }));
  const path = join(directory, "recipe.yaml");
  const read = async (recipe: object) => {
    await writeFile(path, JSON.stringify(recipe));
    return readRecipe(path);
  };
  await mkdir(join(directory, "app"));
  await writeFile(
    join(directory, "app", "Dockerfile"),
    "FROM debian:12\nCOPY main.py /app/\nCMD python3 /app/main.py\n",
  );
  await writeFile(join(directory, "app", "main.py"), "1");
  const built = await read({ from: { dockerfile: "app/Dockerfile" }, ready: "true" });
  assert.deepEqual(built.base, { kind: "image", reference: "debian:12", credentials: undefined });
  assert.deepEqual(
    [built.folder, built.startCommand, built.readyCommand],
    [join(directory, "app"), "python3 /app/main.py", "true"],
  );
  assert.deepEqual(
    built.steps.map(({ type, args }) => [type, ...args.slice(0, 2)]),
    [
      ["USER", "root"],
      ["WORKDIR", "/"],
      ["COPY", "main.py", "/app/"],
      ["USER", "user"],
      ["WORKDIR", "/home/user"],
    ],
  );
  await writeFile(join(directory, "app", "Dockerfile"), "FROM debian:13\nUSER app\nWORKDIR /app\n");
  const other = await read({ from: { dockerfile: "app/Dockerfile" }, ready: "true" });
  assert.notEqual(other.digest, built.digest);
  assert.equal(other.steps.length, 4);
  await assert.rejects(
    read({ from: { dockerfile: "app/Dockerfile" }, steps: "RUN true" }),
    /^Error: steps: /,
  );

  const copied = await read({ from: { directory: "app" } });
  assert.ok(copied.base.kind === "directory");
  assert.equal(copied.base.path, join(directory, "app"));
  await utimes(join(directory, "app"), 1, 1);
  assert.notEqual((await read({ from: { directory: "app" } })).digest, copied.digest);
  await assert.rejects(read({ from: { directory: "app/main.py" } }), /is no directory$/);
  await assert.rejects(read({ from: { directory: "missing" } }), /ENOENT/);
});

for (const wrong of [
  { from: { debian: { suite: "--help" } } },
  { from: { debian: { suite: "trixie", packages: ["a,b"] } } },
  { from: { debian: { suite: "trixie", packages: ["--x"] } } },
  { from: { debian: { suite: "trixie", snapshot: "yesterday" } } },
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
