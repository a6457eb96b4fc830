import { spawnSync } from "node:child_process";
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
 * Makes the Debian package of this platform.
 * @param tree of the self-contained tarball.
 * @returns its path.
 */
export async function makeDebianPackage(into, tree, version) {
  const architecture = ARCHITECTURES[process.arch];
  const path = join(into, `coppice_${version}_${architecture}.deb`);
  const staging = await mkdtemp(join(tmpdir(), "coppice-deb-"));
  const inPackage = async (place) => {
    await mkdir(join(staging, place, ".."), { recursive: true });
    return join(staging, place);
  };
  const write = async (place, content) => writeFile(await inPackage(place), content);
  const copy = async (from, place) => write(place, await readFile(join(ROOT, from)));
  try {
    await cp(tree, await inPackage("usr/lib/coppice"), { recursive: true, verbatimSymlinks: true });
    await symlink("../lib/coppice/bin/coppice", await inPackage("usr/bin/coppice"));
    const config = await readFile(join(ROOT, "config/linux.yaml"), "utf8");
    const schema = "$schema=/usr/lib/coppice/config/schema.json";
    await write(
      "etc/coppice/coppice.yaml",
      config.replace("$schema=schema.json", () => schema),
    );
    await copy("packaging/debian/coppice.service", "usr/lib/systemd/system/coppice.service");
    await copy("LICENSE", "usr/share/doc/coppice/copyright");
    for (const name of DOCS) await copy(`docs/${name}`, `usr/share/doc/coppice/${name}`);
    const changes = gzipSync(await readFile(join(ROOT, "CHANGELOG.md")), { level: 9 });
    await write("usr/share/doc/coppice/changelog.gz", changes);
    for (const name of SCRIPTS) await copy(`packaging/debian/${name}`, `DEBIAN/${name}`);
    await write("DEBIAN/conffiles", "/etc/coppice/coppice.yaml\n");
    const [sizeKib] = outputOf("du", ["-sk", staging]).split("\t");
    await write("DEBIAN/control", control({ version, architecture, sizeKib }));
    // Whatever the umask here is.
    const scripts = SCRIPTS.map((name) => join(staging, "DEBIAN", name));
    await mustRunStep("chmod", "chmod", ["-R", "u+w,go-w,a+rX", staging]);
    await mustRunStep("chmod", "chmod", ["755", staging, ...scripts]);
    await mustRunStep("dpkg-deb", "dpkg-deb", ["--root-owner-group", "-Zzstd", "--build", staging, path]);
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
Section: admin
Priority: optional
Description: self-hosted sandbox server for AI agents
 Coppice runs code that AI agents wrote, each sandbox isolated by namespaces and
 limited by control groups, and answers the unmodified E2B SDKs: lifecycle,
 commands, terminals, files, watching, code interpreter and templates.
`;
}
