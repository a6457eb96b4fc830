import { existsSync } from "node:fs";
import { mkdir, rename, rm } from "node:fs/promises";
import { basename, join } from "node:path";
import { canInstallDebianPackages } from "./apt.mjs";
import { ROOT, TOOLCHAIN } from "./project.mjs";
import { FailedStep, runStep, runStepAgain, told } from "./step.mjs";

const FOLDER = join(TOOLCHAIN, "debian-guest");
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

const isUsedBy = (path) => path.replace(/\/$/, "") === "test" || basename(path) === "vm.test.ts";

/**
 * A Debian for QEMU, for one test alone. Made anew when its folder is removed.
 * @param paths the tests to run: all where there are none.
 * @returns the environment variable with its path.
 */
export async function testGuest(paths) {
  if (paths.length > 0 && !paths.some(isUsedBy)) return {};
  if (process.arch !== "x64" || !canInstallDebianPackages()) return {};
  if (!existsSync(FOLDER)) await told("Making a Debian for tests in QEMU", makeGuest);
  if (existsSync(FOLDER)) return { COPPICE_TEST_GUEST: FOLDER };
  if (process.env.CI) throw new FailedStep("a Debian for tests in QEMU could not be made");
  return {};
}
