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

/** Installs the missing ones on Debian, as root. Elsewhere templates are not built, and the server says what it lacks. */
export async function ensureTemplatePackages() {
  if (process.platform !== "linux" || !canInstallDebianPackages()) return;
  const missing = Object.keys(WANTED).filter((name) => !existsSync(WANTED[name]));
  if (missing.length > 0) await installDebianPackages(missing);
}
