import { existsSync } from "node:fs";
import { readFile, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { mayRun } from "./debian-packages.mjs";
import { ROOT, TOOLCHAIN } from "./project.mjs";
import { FailedStep, outputOf, runStepAgain, told } from "./step.mjs";

/** A module of Go that names etcd and all that it is made of, with versions and digests. */
const MODULE = join(ROOT, "test", "etcd");
const SERVER = "go.etcd.io/etcd/server/v3";

/** True where this machine has a Go as new as the module wants. @param text its `go.mod` */
function hasGo(text) {
  const numbers = (release) =>
    /(\d+)\.(\d+)/
      .exec(release ?? "")
      ?.slice(1)
      .map(Number) ?? [0, 0];
  const [major, minor] = numbers(outputOf("go", ["env", "GOVERSION"]));
  const [oldestMajor, oldestMinor] = numbers(/^go (.*)$/m.exec(text)?.[1]);
  return major > oldestMajor || (major === oldestMajor && minor >= oldestMinor);
}

/**
 * The newest etcd, built by the Go of this machine, beside the one of Debian. Without Go the tests that want it are
 * skipped.
 * @param paths the tests to run: all where there are none.
 * @returns the environment variable with its path.
 */
export async function testEtcd(paths) {
  if (!mayRun(paths, /fleet/)) return {};
  const text = await readFile(join(MODULE, "go.mod"), "utf8");
  const version = new RegExp(`${SERVER} (v\\S+)`).exec(text)?.[1];
  const program = join(TOOLCHAIN, `etcd-${version}`);
  if (!existsSync(program)) {
    if (!hasGo(text)) return {};
    // Under another name until it is whole: two runs may build it at once.
    const unfinished = `${program}.${process.pid}`;
    const build = () => runStepAgain("go build", "go", ["build", "-o", unfinished, SERVER], { cwd: MODULE });
    const code = await told(`Building etcd ${version} with Go`, build);
    if (code !== 0) {
      await rm(unfinished, { force: true });
      if (process.env.CI) throw new FailedStep(`etcd ${version} could not be built`);
      return {};
    }
    await rename(unfinished, program);
  }
  return { COPPICE_TEST_NEWEST_ETCD: program };
}
