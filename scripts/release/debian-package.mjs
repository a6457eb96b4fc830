// Makes the Debian package of a tree that runs by itself: production files of the checkout, built programs, and Node.js
// as `node` at its top.
//
// usage: node scripts/release/debian-package.mjs TREE PACKAGE.deb [VERSION]
import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { ROOT } from "../toolchain/project.mjs";

const ARCHITECTURES = { x64: "amd64", arm64: "arm64" };
const SCRIPTS = ["postinst", "prerm", "postrm"];
const DOCS = ["operating.md", "linux.md", "reference.md", "security.md", "templates.md", "errors.md"];

const [tree, output, version = versionOfProject()] = process.argv.slice(2);
if (output === undefined) {
  console.error("usage: node scripts/release/debian-package.mjs TREE PACKAGE.deb [VERSION]");
  process.exit(2);
}
const staging = mkdtempSync(join(tmpdir(), "coppice-deb-"));
try {
  stage();
  execFileSync("dpkg-deb", ["--root-owner-group", "-Zzstd", "--build", staging, output], {
    stdio: "inherit",
  });
} finally {
  rmSync(staging, { recursive: true });
}

function stage() {
  // dpkg wants these rights whatever the umask here is.
  write("usr/bin/coppice", wrapper(), 0o755);
  cpSync(tree, directory("usr/lib/coppice"), { recursive: true, verbatimSymlinks: true });
  copy("packaging/debian/coppice.service", "usr/lib/systemd/system/coppice.service");
  copy("packaging/debian/end-sandboxes.mjs", "usr/lib/coppice/packaging/end-sandboxes.mjs");
  write(
    "etc/coppice/coppice.yaml",
    readFileSync(join(ROOT, "config/linux.yaml"), "utf8").replace(
      "$schema=schema.json",
      "$schema=/usr/lib/coppice/config/schema.json",
    ),
  );
  copy("LICENSE", "usr/share/doc/coppice/copyright");
  for (const name of DOCS) copy(`docs/${name}`, `usr/share/doc/coppice/${name}`);
  write(
    "usr/share/doc/coppice/changelog.gz",
    gzipSync(readFileSync(join(ROOT, "CHANGELOG.md")), { level: 9 }),
  );
  for (const name of SCRIPTS)
    write(`DEBIAN/${name}`, readFileSync(join(ROOT, "packaging/debian", name)), 0o755);
  write("DEBIAN/conffiles", "/etc/coppice/coppice.yaml\n");
  write("DEBIAN/control", control());
  execFileSync("chmod", ["-R", "u+w,go-w,a+rX", staging]);
}

/** Node.js of the package, with the settings that keep the server small. */
function wrapper() {
  return '#!/bin/sh\nexec /usr/lib/coppice/node --max-semi-space-size=4 /usr/lib/coppice/core/bin/coppice.mjs "$@"\n';
}

function control() {
  const [size] = execFileSync("du", ["-sk", staging], { encoding: "utf8" }).split("\t");
  return `Package: coppice
Version: ${version}
Architecture: ${ARCHITECTURES[process.arch]}
Maintainer: Coppice maintainers <maintainers@coppice.invalid>
Installed-Size: ${size}
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

function versionOfProject() {
  return JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8")).version;
}

function directory(path) {
  mkdirSync(join(staging, path), { recursive: true });
  return join(staging, path);
}

function copy(from, to) {
  write(to, readFileSync(join(ROOT, from)));
}

function write(path, content, mode = 0o644) {
  directory(join(path, ".."));
  writeFileSync(join(staging, path), content, { mode });
}
