import { existsSync } from "node:fs";
import { mkdir, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { lookup } from "node:dns/promises";
import { runQuietly, runStepAgain, told } from "./step.mjs";

/** Another program of the system may be installing something: a new machine updates itself. */
const OPTIONS = ["-qq", "-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=120"];

/** True when Debian packages can be installed here: there is apt, and this is root. */
export function canInstallDebianPackages() {
  return existsSync("/usr/bin/apt-get") && process.getuid?.() === 0;
}

/** Installs packages of Debian, and prints their names. @returns true when it succeeded. */
export function installDebianPackages(packages) {
  return told(`Installing Debian's ${packages.join(", ")}`, () => install(packages));
}

async function install(packages) {
  const env = { ...process.env, DEBIAN_FRONTEND: "noninteractive" };
  // Without this option apt ignores a list that it could not fetch. After the last attempt an older list may suffice.
  const update = ["update", ...OPTIONS, "-o", "APT::Update::Error-Mode=any"];
  await runStepAgain("apt-get update", "apt-get", update, { env });
  const words = ["install", "-y", "--no-install-recommends", ...OPTIONS, ...packages];
  const code = await runStepAgain(`installing ${packages.join(", ")}`, "apt-get", words, { env });
  return code === 0;
}

/**
 * Unpacks a package of Debian into a folder, as any user: the machine's own lists and packages stay as they are.
 * @returns false when it cannot be fetched.
 */
export async function unpackDebianPackage(name, folder) {
  if (!existsSync("/usr/bin/apt-get")) return false;
  const apt = join(folder, "apt");
  await rm(folder, { recursive: true, force: true });
  await mkdir(join(apt, "lists", "partial"), { recursive: true });
  const options = [...OPTIONS, "-o", `Dir::State::Lists=${join(apt, "lists")}`, "-o", `Dir::Cache=${apt}`];
  // Fetches as this user: apt's own account may not write here.
  options.push("-o", "APT::Sandbox::User=");
  const get = (what, words) => runStepAgain(what, "apt-get", [...words, ...options], { cwd: apt });
  if ((await get("apt-get update", ["update"])) !== 0) return false;
  if ((await get(`fetching ${name}`, ["download", name])) !== 0) return false;
  const archive = (await readdir(apt)).find((file) => file.endsWith(".deb"));
  const isUnpacked =
    archive && (await runQuietly("dpkg-deb", "dpkg-deb", ["-x", join(apt, archive), folder])) === 0;
  await rm(apt, { recursive: true, force: true });
  return isUnpacked;
}

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
