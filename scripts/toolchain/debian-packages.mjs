import { existsSync } from "node:fs";
import { canInstallDebianPackages, installDebianPackages } from "./apt.mjs";
import { FailedStep, outputOf } from "./step.mjs";

/** True with a clang that has libFuzzer and the sanitizers. */
export function canFuzz() {
  const program =
    "int LLVMFuzzerTestOneInput(const char *data, unsigned long size) { return data && size ? 0 : 0; }";
  const parameters = ["-fsanitize=fuzzer,address,undefined", "-x", "c", "-", "-o", "/dev/null"];
  return outputOf("clang", parameters, { input: program, stdio: ["pipe", "pipe", "ignore"] }) !== undefined;
}

/** Debian's own interpreter, because its packages are for no other. */
const DEBIAN_PYTHON = "/usr/bin/python3";

/** True when Jupyter's test of kernels can run through Jupyter Server's gateway client. */
function canTestKernels() {
  const program = "import jupyter_kernel_test, jupyter_server.gateway.managers";
  return outputOf(DEBIAN_PYTHON, ["-c", program]) !== undefined;
}

/** Packages for tests that are skipped without them, each by `files` of it. Of large ones `usedBy` has the names of the only test files that use them. */
const WANTED = [
  { packages: ["clang", "libclang-rt-dev"], isThere: canFuzz, usedBy: /protocol/ },
  // For sandboxes made of this host's /usr.
  { packages: ["sudo"], files: ["/usr/bin/sudo"] },
  { packages: ["procps"], files: ["/usr/bin/ps", "/usr/bin/pgrep"] },
  { packages: ["python3-venv"], isThere: () => outputOf(DEBIAN_PYTHON, ["-c", "import ensurepip"]) === "" },
  { packages: ["curl"], files: ["/usr/bin/curl"] },
  { packages: ["git"], files: ["/usr/bin/git"] },
  // For images that tests make themselves, and a registry of them.
  {
    packages: ["busybox-static", "bash-static", "docker-registry"],
    files: ["/var/lib/dpkg/info/busybox-static.list", "/bin/bash-static", "/usr/bin/docker-registry"],
  },
  // Template images: unpacked, and brought from registries.
  { packages: ["umoci", "skopeo"], files: ["/usr/bin/umoci", "/usr/bin/skopeo"] },
  { packages: ["xz-utils"], files: ["/usr/bin/xz"] },
  { packages: ["uidmap"], files: ["/usr/bin/newuidmap", "/usr/bin/newgidmap"] },
  { packages: ["iproute2", "nftables"], files: ["/usr/bin/ip", "/usr/sbin/nft"] },
  { packages: ["passt", "slirp4netns"], files: ["/usr/bin/pasta", "/usr/bin/slirp4netns"] },
  // For the tests of a fleet of servers.
  { packages: ["etcd-server", "strace"], files: ["/usr/bin/etcd", "/usr/bin/strace"] },
  { packages: ["nginx-light"], files: ["/usr/sbin/nginx"] },
  { packages: ["caddy"], files: ["/usr/bin/caddy"], usedBy: /reverse-proxies/ },
  { packages: ["zfs-fuse"], files: ["/usr/sbin/zfs-fuse"], usedBy: /freebsd/ },
  // FreeBSD's tar(1), which packs images of jails.
  { packages: ["libarchive-tools"], files: ["/usr/bin/bsdtar"] },
  {
    packages: ["qemu-system-x86", "qemu-utils", "e2fsprogs"],
    files: ["/usr/bin/qemu-system-x86_64", "/usr/bin/qemu-img", "/usr/sbin/mke2fs"],
    usedBy: /freebsd/,
  },
  // Runs the image of a container.
  { packages: ["runc"], files: ["/usr/sbin/runc"], usedBy: /container-image/ },
  { packages: ["mmdebstrap"], files: ["/usr/bin/mmdebstrap"] },
  { packages: ["chromium"], files: ["/usr/bin/chromium"], usedBy: /foreign-pages|system-calls/ },
  {
    packages: ["python3-jupyter-kernel-test", "python3-jupyter-server"],
    isThere: canTestKernels,
    usedBy: /jupyter-kernel-test/,
  },
];

/**
 * Installs the missing packages on Debian, as root. Outside of CI a failure is left to the tests, which skip what
 * they lack.
 * @param paths the tests to run: all where there are none.
 * @returns environment variables with the paths of programs that tests do not find themselves.
 */
export async function ensureTestPackages(paths = []) {
  await installMissing(WANTED.filter(({ usedBy }) => usedBy === undefined || mayRun(paths, usedBy)));
  return canTestKernels() ? { COPPICE_PYTHON_JUPYTER: DEBIAN_PYTHON } : {};
}

/** True unless all the paths are of test files, and none is meant. */
export function mayRun(paths, meant) {
  return paths.length === 0 || paths.some((path) => !path.endsWith(".ts") || meant.test(path));
}

const missingOf = (wanted) =>
  wanted
    .filter(({ files, isThere }) => !(isThere?.() ?? files.every((path) => existsSync(path))))
    .flatMap(({ packages }) => packages);

async function installMissing(wanted) {
  if (process.platform !== "linux" || !canInstallDebianPackages()) return;
  const missing = missingOf(wanted);
  if (missing.length === 0) return;
  await installDebianPackages(missing);
  const left = missingOf(wanted);
  if (left.length > 0 && process.env.CI) throw new FailedStep(`${left.join(", ")} could not be installed`);
}
