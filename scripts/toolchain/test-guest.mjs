import { existsSync } from "node:fs";
import { mkdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { canInstallDebianPackages } from "./apt.mjs";
import { ROOT, TOOLCHAIN } from "./project.mjs";
import { FailedStep, runStep, runStepAgain, told } from "./step.mjs";

const FOLDER = join(TOOLCHAIN, "test-guest");
const MAKE = join(ROOT, "test", "freebsd", "make-guest.sh");

async function makeGuest() {
  const unfinished = `${FOLDER}.${process.pid}`;
  await mkdir(unfinished, { recursive: true });
  try {
    const make = () => runStep(MAKE, [unfinished]);
    // Known packages may be older than the ones that can be had.
    if ((await make()) !== 0) {
      await runStepAgain("apt-get update", "apt-get", ["update", "-qq"]);
      if ((await make()) !== 0) return;
    }
    await rename(unfinished, FOLDER);
  } finally {
    await rm(unfinished, { recursive: true, force: true });
  }
}

/**
 * A Linux guest for QEMU, for tests alone. Made anew when its folder is removed.
 * @returns the environment variable with its path.
 */
export async function testGuest() {
  if (process.arch !== "x64" || !canInstallDebianPackages()) return {};
  if (!existsSync(FOLDER)) await told("Fetching Debian's kernel for tests in QEMU", makeGuest);
  if (existsSync(FOLDER)) return { COPPICE_TEST_GUEST: FOLDER };
  if (process.env.CI) throw new FailedStep("Debian's kernel could not be fetched");
  return {};
}
