import { existsSync } from "node:fs";
import { runStepAgain, told } from "./step.mjs";

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
  const code = await runStepAgain(`installing ${packages.join(", ")}`, "apt-get", words, {
    env,
    stdio: ["ignore", "ignore", "inherit"],
  });
  return code === 0;
}
