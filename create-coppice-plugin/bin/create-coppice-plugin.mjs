#!/usr/bin/env node
// `npm create coppice-plugin`: makes the project of a plugin or a backend in an empty folder.
import { mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join, relative, resolve } from "node:path";
import { createInterface } from "node:readline/promises";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const USAGE = `Usage: npm create coppice-plugin [folder] -- --kind backend|plugin --name @scope/name

Makes the project of a Coppice plugin in a folder that is empty or does not exist ('.' when absent).

  --kind <kind>        backend: makes sandboxes; plugin: anything else, such as routes
  --name <package>     name of its npm package; 'coppice-' before the name of the plugin is usual
  --packages <folder>  takes the packages of Coppice from tarballs of a release in this folder, not from the registry
  -h, --help           prints this

On a terminal it asks for what is missing. Exit code 2: the arguments are wrong, or the folder is not empty.
`;
const KINDS = ["backend", "plugin"];
/** A configuration names a package by its slash. The part behind it names the plugin, in kebab-case. */
const NAME = /^@[a-z0-9][a-z0-9-]*\/(?:coppice-)?(?:plugin-|backend-)?([a-z][a-z0-9]*(?:-[a-z0-9]+)*)$/;
const MOST_NAME = 214;
/** Where a version of Coppice's packages stands in the name of a tarball. */
const TARBALL = /^(coppice-.*?)-\d+\.\d+\.\d+[\w.+-]*\.tgz$/;

const TEMPLATE = fileURLToPath(new URL("../template/", import.meta.url));

class WrongUse extends Error {}

async function main() {
  const { folder, kind, name, packages, isHelp } = await readArguments();
  if (isHelp) return void process.stdout.write(USAGE);
  const [, plugin] = NAME.exec(name);
  const { version } = JSON.parse(await readFile(new URL("../package.json", import.meta.url), "utf8"));
  const tarballs = packages === undefined ? undefined : await tarballsIn(resolve(packages));
  await requireEmpty(folder);
  const values = { name, plugin, version, metric: plugin.replaceAll("-", "_") };
  for (const part of ["common", kind]) await fill(join(TEMPLATE, part), folder, values);
  if (tarballs !== undefined) await takeFrom(tarballs, folder);
  const place = relative(process.cwd(), folder);
  const enter = place === "" ? "" : `cd ${place} && `;
  process.stdout.write(`${name} is made. Next: ${enter}npm install && npm test; README.md has more.\n`);
}

async function readArguments() {
  const { values, positionals } = parse();
  if (values.help) return { isHelp: true };
  if (positionals.length > 1) throw new WrongUse("there is one folder at most");
  const isAsking = process.stdin.isTTY && process.stdout.isTTY;
  const terminal = isAsking ? createInterface({ input: process.stdin, output: process.stdout }) : undefined;
  try {
    const kind = values.kind ?? (await terminal?.question("Kind (backend or plugin): "))?.trim();
    if (kind === undefined) throw new WrongUse("--kind is missing: backend or plugin");
    if (!KINDS.includes(kind)) throw new WrongUse(`a kind is backend or plugin, not ${JSON.stringify(kind)}`);
    const name = values.name ?? (await terminal?.question("Package (@scope/coppice-name): "))?.trim();
    if (name === undefined) throw new WrongUse("--name is missing, such as @acme/coppice-census");
    if (!NAME.test(name) || name.length > MOST_NAME) {
      const rule = "@scope/name in small letters, digits and single hyphens, the name with a letter first";
      throw new WrongUse(`a package is ${rule}, not ${JSON.stringify(name)}`);
    }
    return { folder: resolve(positionals[0] ?? "."), kind, name, packages: values.packages };
  } finally {
    terminal?.close();
  }
}

function parse() {
  try {
    const text = /** @type {const} */ ({ type: "string" });
    return parseArgs({
      allowPositionals: true,
      options: { kind: text, name: text, packages: text, help: { type: "boolean", short: "h" } },
    });
  } catch (error) {
    throw new WrongUse(error.message);
  }
}

/** Makes a folder where there is none. @throws WrongUse when there is something in it besides Git's own. */
async function requireEmpty(folder) {
  try {
    await mkdir(folder, { recursive: true });
    const names = await readdir(folder);
    if (names.some((name) => name !== ".git"))
      throw new WrongUse(`the folder ${JSON.stringify(folder)} is not empty`);
  } catch (error) {
    if (error.code !== "EEXIST" && error.code !== "ENOTDIR") throw error;
    throw new WrongUse(`${JSON.stringify(folder)} is no folder`);
  }
}

/** Writes the files of a template, with values where `{{name}}` stands. */
async function fill(template, folder, values) {
  for (const entry of await readdir(template, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile()) continue;
    const source = join(entry.parentPath, entry.name);
    // npm packs no file with the real name.
    const path = join(folder, relative(template, source)).replace(/gitignore$/, ".gitignore");
    const text = await readFile(source, "utf8");
    await mkdir(dirname(path), { recursive: true });
    await writeFile(
      path,
      text.replaceAll(/\{\{(\w+)\}\}/g, (_, key) => values[key]),
    );
  }
}

/** Tarballs of Coppice's packages by the packages' names: `coppice-core-0.1.0.tgz` is that of `@coppice/core`. */
async function tarballsIn(packages) {
  const names = await readdir(packages).catch((error) => {
    throw new WrongUse(`--packages: ${error.message}`);
  });
  const found = names.flatMap((file) => {
    const [, part] = TARBALL.exec(file) ?? [];
    return part === undefined ? [] : [[part.replace("-", "/").replace(/^/, "@"), join(packages, file)]];
  });
  const tarballs = new Map(found);
  if (tarballs.has("@coppice/core")) return tarballs;
  throw new WrongUse(`--packages: ${JSON.stringify(packages)} has no coppice-core-….tgz`);
}

/** Has a project install Coppice's packages from tarballs, with the agent's programs for this platform. */
async function takeFrom(tarballs, folder) {
  const path = join(folder, "package.json");
  const manifest = JSON.parse(await readFile(path, "utf8"));
  const wanted = manifest.devDependencies;
  if ("@coppice/agent" in wanted) wanted[`@coppice/agent-${process.platform}-${process.arch}`] = "";
  for (const name of Object.keys(wanted)) {
    const tarball = tarballs.get(name);
    if (tarball !== undefined) wanted[name] = `file:${relative(folder, tarball)}`;
    else if (wanted[name] === "") delete wanted[name];
  }
  await writeFile(path, `${JSON.stringify(manifest, undefined, 2)}\n`);
}

try {
  await main();
} catch (error) {
  process.stderr.write(`create-coppice-plugin: ${error.message}\n`);
  if (error instanceof WrongUse)
    process.stderr.write("'npm create coppice-plugin -- --help' has the usage\n");
  process.exitCode = error instanceof WrongUse ? 2 : 1;
}
