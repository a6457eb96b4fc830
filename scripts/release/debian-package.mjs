import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, writeFileSync } from "node:fs";
import { cp, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { ROOT } from "../toolchain/project.mjs";
import { mustRunStep, outputOf } from "../toolchain/step.mjs";

const ARCHITECTURES = { x64: "amd64", arm64: "arm64" };
const SCRIPTS = ["postinst", "prerm", "postrm"];
const DOCS = [
  "operating.md",
  "runbook.md",
  "linux.md",
  "reference.md",
  "security.md",
  "templates.md",
  "errors.md",
];

export function hasDebianTools() {
  return spawnSync("dpkg-deb", ["--version"], { stdio: "ignore" }).status === 0;
}

/**
 * Writes the sources of Debian 12 that this machine has.
 * @returns the last words of mmdebstrap: the suite, its target, and the file. On another system it has none, and mmdebstrap
 * uses its own.
 */
export function bookwormInto(target, file) {
  const sources = execFileSync(join(ROOT, "scripts/toolchain/debian-sources.sh"), { encoding: "utf8" });
  const own = sources.split("\n").filter((line) => line.includes(" bookworm"));
  writeFileSync(file, `${own.join("\n")}\n`);
  return ["bookworm", target, ...(own.length > 0 ? [file] : [])];
}

/**
 * Makes the Debian package of this platform.
 * @param tree of the self-contained tarball.
 * @returns its path.
 */
export async function makeDebianPackage(into, tree, version) {
  return makePackage(into, { name: "coppice", version, control, compression: "zstd" }, async (put) => {
    await cp(tree, await put("usr/lib/coppice"), { recursive: true, verbatimSymlinks: true });
    await symlink("../lib/coppice/bin/coppice", await put("usr/bin/coppice"));
    const config = await readFile(join(ROOT, "config/linux.yaml"), "utf8");
    const schema = "$schema=/usr/lib/coppice/config/schema.json";
    await writeFile(
      await put("etc/coppice/coppice.yaml"),
      config.replace("$schema=schema.json", () => schema),
    );
    const copy = async (from, place) => cp(join(ROOT, from), await put(place));
    await copy("packaging/debian/coppice.service", "usr/lib/systemd/system/coppice.service");
    await copy("LICENSE", "usr/share/doc/coppice/copyright");
    for (const name of DOCS) await copy(`docs/${name}`, `usr/share/doc/coppice/${name}`);
    const changes = gzipSync(await readFile(join(ROOT, "CHANGELOG.md")), { level: 9 });
    await writeFile(await put("usr/share/doc/coppice/changelog.gz"), changes);
    for (const name of SCRIPTS) await copy(`packaging/debian/${name}`, `DEBIAN/${name}`);
    await writeFile(await put("DEBIAN/conffiles"), "/etc/coppice/coppice.yaml\n");
  });
}

/**
 * Makes the Debian package of template images, which the server takes in place of building their recipes.
 * @param images folder laid out like `templates`. @returns its path.
 */
export async function makeImagesPackage(into, images, version) {
  const about = { name: "coppice-templates", version, control: imagesControl, compression: "none" };
  return makePackage(into, about, async (put) => {
    await cp(images, await put("usr/lib/coppice/templates"), { recursive: true });
    await cp(join(ROOT, "LICENSE"), await put("usr/share/doc/coppice-templates/copyright"));
  });
}

/** @param fill puts the files of the package in its tree: `put` makes the folder of a place, and has its path. */
async function makePackage(into, { name, version, control: controlOf, compression }, fill) {
  const architecture = ARCHITECTURES[process.arch];
  const path = join(into, `${name}_${version}_${architecture}.deb`);
  const staging = await mkdtemp(join(tmpdir(), "coppice-deb-"));
  const put = async (place) => {
    await mkdir(join(staging, place, ".."), { recursive: true });
    return join(staging, place);
  };
  try {
    await fill(put);
    const [sizeKib] = outputOf("du", ["-sk", staging]).split("\t");
    await writeFile(await put("DEBIAN/control"), controlOf({ version, architecture, sizeKib }));
    // Whatever the umask here is.
    const scripts = SCRIPTS.map((script) => join(staging, "DEBIAN", script)).filter((script) =>
      existsSync(script),
    );
    await mustRunStep("chmod", "chmod", ["-R", "u+w,go-w,a+rX", staging]);
    await mustRunStep("chmod", "chmod", ["755", staging, ...scripts]);
    const words = ["--root-owner-group", `-Z${compression}`, "--build", staging, path];
    await mustRunStep("dpkg-deb", "dpkg-deb", words);
    return path;
  } finally {
    await rm(staging, { recursive: true });
  }
}

function control({ version, architecture, sizeKib }) {
  return `Package: coppice
Version: ${version}
Architecture: ${architecture}
Maintainer: Coppice maintainers <maintainers@coppice.invalid>
Installed-Size: ${sizeKib}
Depends: libc6 (>= 2.28), libstdc++6, init-system-helpers, iproute2, nftables, ca-certificates
Recommends: mmdebstrap, umoci, skopeo, sudo
Suggests: coppice-templates
Section: admin
Priority: optional
Description: self-hosted sandbox server for AI agents
 Coppice runs code that AI agents wrote, each sandbox isolated by namespaces and
 limited by control groups, and answers the unmodified E2B SDKs: lifecycle,
 commands, terminals, files, watching, code interpreter and templates.
`;
}

function imagesControl({ version, architecture, sizeKib }) {
  return `Package: coppice-templates
Version: ${version}
Architecture: ${architecture}
Maintainer: Coppice maintainers <maintainers@coppice.invalid>
Installed-Size: ${sizeKib}
Enhances: coppice
Section: admin
Priority: optional
Description: images of the templates of a sandbox server
 With these images of base and code-interpreter-v1 the first start of coppice has
 its templates in seconds, without a network. Without them it builds both of
 Debian's packages.
`;
}
