import { cp, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { existsSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { ROOT, workspaces } from "../toolchain/project.mjs";
import { FailedStep, outputOf } from "../toolchain/step.mjs";

const QUIET = ["--no-audit", "--no-fund", "--loglevel=error"];
/** At the top of a workspace, but in no package. */
const LEFT_OUT = new Set(["node_modules", "src", "tsconfig.tsbuildinfo"]);

const readJson = async (path) => JSON.parse(await readFile(path, "utf8"));
const writeJson = (path, value) => writeFile(path, `${JSON.stringify(value, undefined, 2)}\n`);
const agentPackageOf = (platform) => `@coppice/agent-${platform}`;

/**
 * Packs every package that is published, from what is compiled, by `npm pack`.
 * @param into a folder for the tarballs.
 * @param platforms folders with the native programs, by platform: `linux-x64`. Each becomes an optional package of
 * `@coppice/agent`.
 * @returns paths of the tarballs.
 */
export async function packPackages(into, platforms) {
  const staging = await mkdtemp(join(tmpdir(), "coppice-packing-"));
  try {
    const folders = [];
    for (const workspace of await workspaces()) {
      const manifest = await readJson(join(ROOT, workspace, "package.json"));
      if (manifest.private) continue;
      const folder = join(staging, workspace);
      const source = join(ROOT, workspace);
      const filter = (path) => !LEFT_OUT.has(relative(source, path));
      await cp(source, folder, { recursive: true, filter });
      folders.push(await complete(folder, released(manifest, Object.keys(platforms))));
    }
    const { version, license, engines } = await readJson(join(ROOT, "agent", "package.json"));
    for (const [platform, programs] of Object.entries(platforms)) {
      const folder = join(staging, "platforms", platform);
      await cp(programs, folder, { recursive: true });
      const [os, cpu] = platform.split("-");
      const description = `Native programs of Coppice for ${os} on ${cpu}: the agent, and what backends start.`;
      const name = agentPackageOf(platform);
      folders.push(
        await complete(folder, { name, version, description, license, os: [os], cpu: [cpu], engines }),
      );
    }
    await mkdir(into, { recursive: true });
    const packed = npm(["pack", "--json", "--ignore-scripts", "--pack-destination", into, ...folders], ROOT);
    return Object.values(JSON.parse(packed)).map(({ filename }) => join(into, filename));
  } finally {
    await rm(staging, { recursive: true, force: true });
  }
}

/** The manifest with what is known only now. A checkout has no platform packages, and its commit changes. */
function released(manifest, platforms) {
  if (manifest.name === "@coppice/core")
    return { ...manifest, gitHead: outputOf("git", ["-C", ROOT, "rev-parse", "HEAD"]) };
  if (manifest.name === "@coppice/plugin-fleet") {
    // The entry is for tests of this repository, whose code is in no package.
    const { "./testing": _, ...exports } = manifest.exports;
    return { ...manifest, exports };
  }
  if (manifest.name !== "@coppice/agent") return manifest;
  const optional = platforms.map((platform) => [agentPackageOf(platform), manifest.version]);
  return { ...manifest, optionalDependencies: Object.fromEntries(optional) };
}

/** Adds the licence and, where there is none, a page to the folder of a package. @returns the folder. */
async function complete(folder, manifest) {
  await writeJson(join(folder, "package.json"), { ...manifest, publishConfig: { access: "public" } });
  await cp(join(ROOT, "LICENSE"), join(folder, "LICENSE"));
  const page = join(folder, "README.md");
  if (!existsSync(page)) await writeFile(page, pageOf(manifest));
  return folder;
}

function pageOf({ name, description }) {
  const [, plugin] = /^@coppice\/plugin-(.*)$/.exec(name) ?? [];
  const use =
    plugin &&
    `A plugin of a Coppice server. The package \`coppice\` has it; a configuration switches it on:

\`\`\`yaml
plugins:
  ${plugin}: {}
\`\`\`

\`coppice check <config.yaml>\` says which of its settings are wrong, and \`config/default.yaml\` in the repository lists all
of them. Core (\`@coppice/core\`) is a peer dependency: a server has one copy.
`;
  return `# ${name}\n\n${description}\n${use ? `\n${use}` : ""}`;
}

/** Where npm puts a package that is not inside another: below the root, or below a workspace (`core`, `plugins/files`). */
const INSTALLED = /^(?:(?!node_modules\/)[\w-]+\/(?:[\w-]+\/)?)?node_modules\/((?:@[^/]+\/)?[^/]+)$/;

/**
 * Installs packed packages into a folder without a network. Packages of others are copied from the checkout, as locked.
 * @param more further packages, as npm takes them.
 */
export async function installPackages(folder, tarballs, more = []) {
  await mkdir(folder, { recursive: true });
  const manifest = join(folder, "package.json");
  if (!existsSync(manifest)) await writeJson(manifest, { private: true, type: "module" });
  const { packages } = await readJson(join(ROOT, "package-lock.json"));
  for (const [path, { dev, link }] of Object.entries(packages)) {
    // npm nests a package in a workspace when the root has another version of it: it serves that workspace only, and
    // is installed at the top here. One nested in a package comes with that package.
    const [, name] = INSTALLED.exec(path) ?? [];
    if (!name || dev || link || !existsSync(join(ROOT, path))) continue;
    await cp(join(ROOT, path), join(folder, "node_modules", name), { recursive: true });
  }
  npm(["install", "--offline", "--ignore-scripts", ...QUIET, ...tarballs, ...more], folder);
}

/** Output of npm. @throws FailedStep */
export function npm(parameters, cwd) {
  const output = outputOf("npm", parameters, {
    cwd,
    stdio: ["ignore", "pipe", "inherit"],
    maxBuffer: 2 ** 26,
  });
  if (output === undefined) throw new FailedStep(`npm ${parameters[0]} failed`);
  return output;
}
