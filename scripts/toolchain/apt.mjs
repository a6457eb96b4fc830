import { existsSync } from "node:fs";
import { runStep, runStepAgain } from "./step.mjs";

/** Another program of the system may be installing something: a new machine updates itself. */
const OPTIONS = ["-qq", "-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=120"];

/** Whether packages of Debian can be installed here: there is apt, and this is root. */
export function canInstallDebianPackages() {
  return existsSync("/usr/bin/apt-get") && process.getuid?.() === 0;
}

/** Installs packages of Debian, and says which. @returns whether it did. */
export async function installDebianPackages(packages) {
  console.log(`Installing ${packages.join(", ")} …`);
  const env = { ...process.env, DEBIAN_FRONTEND: "noninteractive" };
  // Where a list cannot be had, an older one may do.
  await runStep("apt-get", ["update", ...OPTIONS], { env });
  const words = ["install", "-y", "--no-install-recommends", ...OPTIONS, ...packages];
  const code = await runStepAgain(`installing ${packages.join(", ")}`, "apt-get", words, {
    env,
    stdio: ["ignore", "ignore", "inherit"],
  });
  return code === 0;
}
