import { chmod, cp, mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { ROOT } from "../toolchain/project.mjs";
import { mustRunStep } from "../toolchain/step.mjs";
import { hasDebianTools, makeDebianPackage } from "./debian-package.mjs";
import { installPackages, npm } from "./packages.mjs";
import { PLATFORMS } from "./programs.mjs";

/** Node's options are those of `npm start`. */
const START = `#!/bin/sh
root=$(dirname -- "$(dirname -- "$(readlink -f -- "$0")")")
export MALLOC_ARENA_MAX="\${MALLOC_ARENA_MAX:-1}"
exec "$root/bin/node" --max-semi-space-size=4 "$root/lib/node_modules/coppice/bin/coppice.mjs" "$@"
`;

/** Writes `bin/coppice`, which starts from anywhere, also through a link. */
export async function writeStart(folder) {
  const path = join(folder, "bin", "coppice");
  await mkdir(join(folder, "bin"), { recursive: true });
  await writeFile(path, START);
  await chmod(path, 0o755);
}

/**
 * Makes a tarball for this platform with this Node, the packages and what they depend on, the Debian package of the same,
 * and a list of these in the form of CycloneDX.
 * @returns the version, and the path of the Debian package where one can be made.
 */
export async function makeStandalone(into, packages) {
  const { version } = JSON.parse(await readFile(join(ROOT, "coppice", "package.json"), "utf8"));
  const platform = `${process.platform}-${process.arch}`;
  const name = `coppice-${version}-${platform}`;
  const folder = join(into, name);
  const lib = join(folder, "lib");
  await mkdir(lib, { recursive: true });
  await writeFile(
    join(lib, "package.json"),
    JSON.stringify({ name: "coppice-standalone", version, private: true }),
  );
  // For other platforms, or for those who write plugins elsewhere.
  const isOfOther = (path) =>
    path.includes("/create-coppice-plugin-") ||
    Object.keys(PLATFORMS).some((each) => each !== platform && path.includes(`-agent-${each}-`));
  await installPackages(
    lib,
    packages.filter((path) => !isOfOther(path)),
  );
  const parts = JSON.parse(npm(["sbom", "--sbom-format", "cyclonedx", "--sbom-type", "application"], lib));
  const node = process.versions.node;
  parts.components.push({
    type: "application",
    name: "node",
    version: node,
    purl: `pkg:generic/node@${node}`,
  });
  await writeFile(join(into, `coppice-${version}.cdx.json`), JSON.stringify(parts, undefined, 2));
  // They name the tarballs by paths of this machine.
  for (const record of ["package.json", "package-lock.json", "node_modules/.package-lock.json"])
    await rm(join(lib, record));
  await writeStart(folder);
  await cp(process.execPath, join(folder, "bin", "node"));
  for (const part of ["LICENSE", "CHANGELOG.md", "config", "templates"])
    await cp(join(ROOT, part), join(folder, part), { recursive: true });
  const owner = ["--owner=0", "--group=0", "--sort=name"];
  await mustRunStep("tar", "tar", ["-czf", join(into, `${name}.tar.gz`), ...owner, "-C", into, name]);
  const deb = hasDebianTools() ? await makeDebianPackage(into, folder, version) : undefined;
  if (deb === undefined) console.log("no Debian package was made: dpkg-deb is missing");
  await rm(folder, { recursive: true });
  return { version, deb };
}
