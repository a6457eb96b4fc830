// Makes a release from what is compiled, in the folder `release`: npm packages, a self-contained tarball, the same as a
// Debian package and an image of a container, a list of what is in it, with `--templates` images of the templates, and
// digests of all.
import { createHash } from "node:crypto";
import { readFile, readdir, rm, writeFile } from "node:fs/promises";
import { dirname, join, relative } from "node:path";
import { ROOT } from "../toolchain/project.mjs";
import { FailedStep, mustRunStep, told } from "../toolchain/step.mjs";
import { ensureZig } from "../toolchain/test-tools.mjs";
import { makeContainerImage, withoutContainerImages } from "./container-image.mjs";
import { hasDebianTools, makeImagesPackage } from "./debian-package.mjs";
import { packPackages } from "./packages.mjs";
import { buildPrograms, PLATFORMS } from "./programs.mjs";
import { makeStandalone } from "./standalone.mjs";

const FOLDER = join(ROOT, "release");
const PROGRAMS = join(FOLDER, "programs");
/** Templates of config/linux.yaml, each after the one that it starts from. */
const IMAGES = ["base", "code-interpreter-v1"];

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
  const standalone = () => makeStandalone(FOLDER, packages);
  const { version, deb } = await told("Making the self-contained tarball", standalone);
  const reason = deb === undefined ? "there is no Debian package" : withoutContainerImages();
  if (reason !== undefined) console.log(`no image of a container was made: ${reason}`);
  else await told("Making the image of a container", () => makeContainerImage(FOLDER, deb, version));
  if (process.argv.includes("--templates"))
    await told("Building the templates and making their images", () => makeTemplateImages(FOLDER, version));
  await writeDigests();
}

/** For the platform of this host, as a tarball and as a Debian package. */
async function makeTemplateImages(into, version) {
  const folder = join(into, "templates");
  const script = join(import.meta.dirname, "template-images.mjs");
  await mustRunStep("building the templates", process.execPath, [script, folder, ...IMAGES]);
  const tarball = join(into, `coppice-templates-${version}-${process.platform}-${process.arch}.tar`);
  const owner = ["--owner=0", "--group=0", "--sort=name"];
  await mustRunStep("tar", "tar", ["-cf", tarball, ...owner, "-C", into, "templates"]);
  if (hasDebianTools()) await makeImagesPackage(into, folder, version);
  await rm(folder, { recursive: true });
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
