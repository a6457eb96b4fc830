// The server as an image of a container: Debian with the files of the Debian package, and no service manager. Needs root,
// mmdebstrap, dpkg-deb and skopeo.
import { spawnSync } from "node:child_process";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { ROOT } from "../toolchain/project.mjs";
import { mustRunStep } from "../toolchain/step.mjs";
import { bookwormInto } from "./debian-package.mjs";

/** What the server runs: for networks, for templates, and what the package depends on. */
const PACKAGES = "libstdc++6,iproute2,nftables,ca-certificates,procps,mmdebstrap,umoci,skopeo";
const UNWANTED = [
  "/usr/share/doc/*",
  "/usr/share/man/*",
  "/usr/share/locale/*",
  "/usr/lib/systemd/system/coppice*",
];

/** Reason why no image can be made here; undefined when it can. */
export function withoutContainerImages() {
  if (process.getuid?.() !== 0) return "it takes root";
  const missing = ["mmdebstrap", "dpkg-deb", "skopeo"].filter(
    (program) => spawnSync(program, ["--version"], { stdio: "ignore" }).error !== undefined,
  );
  return missing.length === 0 ? undefined : `${missing.join(" and ")} missing`;
}

/**
 * Makes the image, as `docker load` and `podman load` take it.
 * @param deb path of the Debian package. @returns its path.
 */
export async function makeContainerImage(into, deb, version) {
  const work = await mkdtemp(join(tmpdir(), "coppice-container-"));
  try {
    const root = join(work, "root.tar");
    const files = join(work, "files.tar");
    const unpacked = join(work, "files");
    await mustRunStep("dpkg-deb", "dpkg-deb", ["--extract", deb, unpacked]);
    await reachable(join(unpacked, "etc/coppice/coppice.yaml"));
    await mustRunStep("tar", "tar", ["-cf", files, "--owner=0", "--group=0", "-C", unpacked, "."]);
    await mustRunStep("mmdebstrap", "mmdebstrap", [
      "--quiet",
      "--variant=minbase",
      `--include=${PACKAGES}`,
      ...UNWANTED.map((path) => `--dpkgopt=path-exclude=${path}`),
      `--customize-hook=tar-in ${files} /`,
      ...bookwormInto(root, join(work, "sources.list")),
    ]);
    const { layerOfFile, writeLayout } = await import(
      pathToFileURL(join(ROOT, "plugins/templates/dist/images/write-layout.js")).href
    );
    const layout = join(work, "layout");
    await mkdir(join(layout, "blobs/sha256"), { recursive: true });
    await writeLayout(layout, await layerOfFile(layout, root), {
      Entrypoint: ["/usr/bin/coppice"],
      Cmd: ["start", "/etc/coppice/coppice.yaml"],
      Env: ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
      WorkingDir: "/usr/lib/coppice",
      ExposedPorts: { "3000/tcp": {} },
      // Layers of sandboxes cannot lie on those of the container.
      Volumes: { "/var/lib/coppice": {} },
      StopSignal: "SIGTERM",
    });
    const image = join(into, `coppice-${version}-${process.platform}-${process.arch}.image.tar`);
    const copy = ["--insecure-policy", "copy", "--quiet", `oci:${layout}:image`];
    await mustRunStep("skopeo", "skopeo", [...copy, `docker-archive:${image}:coppice:${version}`]);
    await mustRunStep("gzip", "gzip", ["--force", image]);
    return `${image}.gz`;
  } finally {
    await rm(work, { recursive: true, force: true });
  }
}

/** Lets the server listen where ports of a container are passed to. */
async function reachable(configFile) {
  const config = await readFile(configFile, "utf8");
  const changed = config.replace("api: { host: 127.0.0.1,", 'api: { host: "0.0.0.0",');
  if (changed === config) throw new Error("config/linux.yaml has no listener that the image could change");
  await writeFile(configFile, changed);
}
