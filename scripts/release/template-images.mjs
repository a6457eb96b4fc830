// Builds templates of `templates/`, and writes each as an image beside its recipe in a folder laid out like `templates`,
// where a server takes it in place of building it. Needs a compiled tree, root on Linux, docker-registry, and what builds need.
//
// usage: node scripts/release/template-images.mjs [--pins ignore] FOLDER NAME...
import { execFileSync } from "node:child_process";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { openDockerRegistry } from "@coppice/core/testing";
import { builtImageOf } from "../../plugins/templates/dist/recipes/recipe.js";
import { API_KEY } from "../../test/dist/harness/server/api-key.js";
import { startRecipesServer } from "../../test/dist/harness/server/recipes-server.js";
import { COPPICE } from "../../test/dist/harness/server/server-process.js";

/** Tag of the build of a recipe: of what it says, and those below it. */
const DIGEST = /^[0-9a-f]{64}$/;

const { values, positionals } = parseArgs({
  options: { pins: { type: "string", default: "prefer" } },
  allowPositionals: true,
});
const [folder, ...names] = positionals;
if (folder === undefined || names.length === 0) {
  console.error("usage: node scripts/release/template-images.mjs [--pins ignore] FOLDER NAME...");
  process.exit(64);
}
try {
  await makeImages();
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}

async function makeImages() {
  await using registry = await openDockerRegistry();
  const { address } = registry;
  await using recipes = await startRecipesServer({ names, pins: values.pins, registry: address });
  if (recipes.failure !== undefined) throw new Error(recipes.failure);
  const unpinned = recipes.server.printed.find((line) => line.includes("the newest packages are taken"));
  // The name of an image says that it is what the recipe says.
  if (unpinned !== undefined) throw new Error(unpinned);
  for (const name of names) {
    await push(recipes.server.url, { template: name, image: `${address}/${name}:latest` });
    const place = join(folder, name);
    await mkdir(place, { recursive: true });
    const image = builtImageOf("recipe.yaml", digestOf(name, recipes.configFile));
    const from = ["--src-tls-verify=false", `docker://${address}/${name}:latest`];
    execFileSync("skopeo", ["--insecure-policy", "copy", "--quiet", ...from, `oci:${image}:image`], {
      cwd: place,
      stdio: ["ignore", "inherit", "inherit"],
    });
    console.log(join(name, image));
  }
}

/** @throws Error with the server's reason */
async function push(url, body) {
  const headers = { "x-api-key": API_KEY, "content-type": "application/json" };
  const answer = await fetch(`${url}/templates/push`, {
    method: "POST",
    headers,
    body: JSON.stringify(body),
  });
  const lines = (await answer.text()).trim().split("\n");
  const last = JSON.parse(lines.at(-1));
  if (last.digest === undefined) throw new Error(JSON.stringify(last));
}

function digestOf(name, configFile) {
  const words = [COPPICE, "template", "inspect", configFile, name];
  const { tags } = JSON.parse(execFileSync(process.execPath, words, { encoding: "utf8" }));
  const found = tags.map(({ name: tag }) => tag).find((tag) => DIGEST.test(tag));
  if (found === undefined) throw new Error(`template '${name}' has no build of its recipe`);
  return found;
}
