// Makes a release from what is compiled, in the folder `release`: npm packages, a self-contained tarball, a list of what
// is in it, and digests of all.
import { createHash } from "node:crypto";
import { readFile, readdir, rm, writeFile } from "node:fs/promises";
import { dirname, join, relative } from "node:path";
import { ROOT } from "../toolchain/project.mjs";
import { FailedStep, told } from "../toolchain/step.mjs";
import { ensureZig } from "../toolchain/test-tools.mjs";
import { packPackages } from "./packages.mjs";
import { buildPrograms, PLATFORMS } from "./programs.mjs";
import { makeStandalone } from "./standalone.mjs";

const FOLDER = join(ROOT, "release");
const PROGRAMS = join(FOLDER, "programs");

async function make() {
  const zig = process.env.COPPICE_ZIG ?? (await ensureZig());
  if (zig === undefined) throw new FailedStep("zig cannot be had: it is the package ziglang of PyPI");
  await rm(FOLDER, { recursive: true, force: true });
  const platforms = {};
  for (const platform of Object.keys(PLATFORMS)) {
    platforms[platform] = join(PROGRAMS, platform);
    const build = () => buildPrograms(platform, zig, platforms[platform]);
    await told(`Building the programs for ${platform}`, build);
  }
  const pack = () => packPackages(join(FOLDER, "npm"), platforms);
  const packages = await told("Packing the npm packages", pack);
  await rm(PROGRAMS, { recursive: true });
  await told("Making the self-contained tarball", () => makeStandalone(FOLDER, packages));
  await writeDigests();
}

/** In the form that `sha256sum --check` reads. */
async function writeDigests() {
  const entries = await readdir(FOLDER, { recursive: true, withFileTypes: true });
  const paths = entries
    .filter((entry) => entry.isFile())
    .map(({ parentPath, name }) => join(parentPath, name));
  const lines = [];
  for (const path of paths.sort()) {
    const digest = createHash("sha256")
      .update(await readFile(path))
      .digest("hex");
    lines.push(`${digest}  ${relative(FOLDER, path)}\n`);
  }
  await writeFile(join(FOLDER, "SHA256SUMS"), lines.join(""));
  console.log(`\n${lines.join("")}\nin ${relative(dirname(FOLDER), FOLDER)}`);
}

try {
  await make();
} catch (error) {
  if (!(error instanceof FailedStep)) throw error;
  console.error(`coppice: ${error.message}`);
  process.exitCode = 1;
}
