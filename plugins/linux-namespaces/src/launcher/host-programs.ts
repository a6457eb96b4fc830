import { constants, access, mkdir, readFile, readdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { execFile } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { packagedFile } from "@coppice/agent";
import { messageOf } from "@coppice/core";

/** True when this process may access a path of the host in this way; by default, when the path exists. */
export async function canAccess(path: string, mode = constants.F_OK): Promise<boolean> {
  return access(path, mode).then(
    () => true,
    () => false,
  );
}

const DIRECTORIES = `
  /usr/bin /bin /usr/sbin /usr/local/bin /run/wrappers/bin /run/current-system/sw/bin
`
  .trim()
  .split(/\s+/);

/**
 * Full path of the first of these programs that this host has, whatever the server's PATH; undefined for none.
 * @param root of the host.
 */
export async function findHostProgram(names: readonly string[], root = "/"): Promise<string | undefined> {
  const paths = names.flatMap((name) => DIRECTORIES.map((directory) => join(root, directory, name)));
  for (const path of paths) if (await canAccess(path, constants.X_OK)) return path;
  return undefined;
}

const run = promisify(execFile);

const SOURCES = fileURLToPath(new URL("../../native", import.meta.url));
/** In a checkout. */
const TOOLCHAIN = fileURLToPath(new URL("../../../../.toolchain", import.meta.url));
const FLAGS = "-std=c17 -O2 -Wall -Wextra -Wshadow -Werror -fstack-protector-strong -fPIE -pie".split(" ");
const COMPILE_TIMEOUT_MS = 60_000;

/** The launcher's file name, which changes with its sources, and those that a compiler is given. */
export async function launcherSources(): Promise<{
  readonly name: string;
  readonly programs: readonly string[];
}> {
  const sources = (await readdir(SOURCES)).filter((name) => /\.[ch]$/.test(name)).toSorted();
  const digest = createHash("sha256").update(FLAGS.join(" "));
  for (const name of sources) digest.update(name).update(await readFile(join(SOURCES, name)));
  return {
    name: `coppice-launcher-${digest.digest("hex").slice(0, 16)}`,
    programs: sources.filter((each) => each.endsWith(".c")).map((each) => join(SOURCES, each)),
  };
}

/**
 * Returns the launcher: that of the agent's package for this platform, where it is of the same sources, else compiled
 * once.
 * @param cache directory for it outside of a checkout, and where that is read-only.
 * @throws Error with what is missing.
 */
export async function launcherBinary(cache: string): Promise<string> {
  const { name, programs } = await launcherSources();
  const packaged = packagedFile(name);
  if (packaged !== undefined) return packaged;
  const places = [join(cache, name)];
  if (await canAccess(TOOLCHAIN)) places.unshift(join(TOOLCHAIN, "linux-namespaces", name));
  for (const place of places) if (await canAccess(place, constants.X_OK)) return place;
  let failure: unknown;
  for (const place of places) {
    const making = `${place}.${randomBytes(4).toString("hex")}`;
    try {
      await mkdir(join(place, ".."), { recursive: true });
      await run("cc", [...FLAGS, "-o", making, ...programs], { timeout: COMPILE_TIMEOUT_MS });
      await rename(making, place);
      return place;
    } catch (error) {
      failure = error;
      await rm(making, { force: true });
    }
  }
  if ((failure as NodeJS.ErrnoException).code === "ENOENT")
    throw new Error("the launcher has to be compiled, and there is no C compiler: install gcc or clang");
  throw new Error(`the launcher could not be compiled: ${messageOf(failure)}`);
}
