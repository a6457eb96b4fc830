import { lookup } from "node:dns/promises";
import { existsSync } from "node:fs";
import { canInstallDebianPackages, installDebianPackages } from "./apt.mjs";

/** Debian packages that templates are built with, each by a file of it: roots, images, and the network of steps. */
const WANTED = {
  mmdebstrap: "/usr/bin/mmdebstrap",
  uidmap: "/usr/bin/newuidmap",
  umoci: "/usr/bin/umoci",
  skopeo: "/usr/bin/skopeo",
  iproute2: "/usr/bin/ip",
  nftables: "/usr/sbin/nft",
};
/** Resolves every name below `localhost`, for programs that are no browsers: Debian's C library does not. */
const NAMES = "libnss-myhostname";
const NAMES_TIMEOUT_MS = 1_000;

/** True where a program finds the address of a sandbox's port, `8000-<id>.localhost`. */
async function resolvesNames() {
  const late = new Promise((resolve) => setTimeout(resolve, NAMES_TIMEOUT_MS, undefined).unref());
  const found = await Promise.race([lookup("8000-sandbox.localhost").catch(() => undefined), late]);
  return found !== undefined;
}

/**
 * Installs what a server for trials has use for and this machine lacks, on Debian, as root. Elsewhere templates are not
 * built, and the server says what it lacks.
 */
export async function ensureStartPackages() {
  if (process.platform !== "linux" || !canInstallDebianPackages()) return;
  const missing = Object.keys(WANTED).filter((name) => !existsSync(WANTED[name]));
  if (!(await resolvesNames())) missing.push(NAMES);
  if (missing.length > 0) await installDebianPackages(missing);
}
