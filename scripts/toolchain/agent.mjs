import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdir, readFile, readdir, rename, rm, writeFile } from "node:fs/promises";
import { join, relative, resolve } from "node:path";
import { canInstallDebianPackages, installDebianPackages } from "./apt.mjs";
import { ROOT, TOOLCHAIN } from "./project.mjs";
import { FailedStep, outputOf, runQuietly, told } from "./step.mjs";

/** Where there is a file of the agent's for the system: agent/native/platform.h. */
const SYSTEMS = ["linux", "freebsd"];
const SOURCES = join(ROOT, "agent", "native");
/** Stand-ins for interfaces of FreeBSD. */
const STAND_INS = join(SOURCES, "testing");
const FOLDER = join(TOOLCHAIN, "agent");
/** A separate program, built on demand. */
const APART = "fuzz-frames.c";
/** Addons of Node, where the system and the processor have what they use. */
function addonsFor(system, processor) {
  if (system !== "linux") return [];
  const descriptors = { name: "descriptors.node", source: join(SOURCES, "addon", "descriptors.c") };
  const base64 = { name: "base64.node", source: join(ROOT, "core", "native", "base64.c") };
  return processor === "x64" ? [descriptors, base64] : [descriptors];
}
const ADDONS = addonsFor(process.platform, process.arch);
const ADDON_FLAGS = ["-shared", "-fPIC"];
/** The second where the first has no C library that can be linked statically. */
const COMPILERS = ["cc", "musl-gcc"];
const WARNINGS = ["-Wall", "-Wextra"];
const GUARDS = ["-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"];
/** Not in builds of users: a warning of their compiler must not keep the agent from being built. */
const STRICT = process.env.CI === "true" ? ["-Werror"] : [];
/** Of every build. */
const FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-pthread", ...WARNINGS, ...GUARDS, ...STRICT];
/**
 * Static: it also runs where there is no C library, or another one, as in a jail of an older FreeBSD. In a sandbox
 * `launch` is root and reads no library that a guest could replace.
 */
const OWN_FLAGS = [...FLAGS, "-static"];

async function sources() {
  const names = await readdir(SOURCES, { recursive: true });
  const isPart = (name) => /\.[ch]$/.test(name) && !/^(addon|testing)\//.test(name) && name !== APART;
  return names.filter(isPart).sort();
}

/** Changes with everything that the program is made of. */
async function digestOf(names) {
  const hash = createHash("sha256").update(JSON.stringify([OWN_FLAGS, process.platform, process.arch]));
  for (const name of names) hash.update(`\0${name}\0`).update(await readFile(resolve(SOURCES, name)));
  return hash.digest("hex");
}

function canLink(compiler) {
  const program = "int main(void) { return 0; }";
  const parameters = ["-static", "-x", "c", "-", "-o", "/dev/null"];
  return outputOf(compiler, parameters, { input: program, stdio: ["pipe", "pipe", "ignore"] }) !== undefined;
}

async function findCompiler() {
  const found = COMPILERS.find(canLink);
  if (found !== undefined || !canInstallDebianPackages()) return found;
  await installDebianPackages(["gcc", "libc6-dev"]);
  return COMPILERS.find(canLink);
}

function inputsIn(folder, names) {
  return names.filter((name) => name.endsWith(".c")).map((name) => join(folder, name));
}

/** @param compiler a program, its words, and its environment where that is another. */
async function compile({ compiler: [program, ...words], env = process.env }, inputs, binary) {
  // Under another name until it is whole: set-up can run twice at once.
  const unfinished = `${binary}.${process.pid}`;
  const code = await runQuietly("the compiler", program, [...words, ...inputs, "-o", unfinished], { env });
  if (code !== 0) {
    await rm(unfinished, { force: true });
    throw new FailedStep(
      `the agent did not compile (exit code ${code}): the compiler's message above says why`,
    );
  }
  await rename(unfinished, binary);
}

/**
 * Builds the agent if it is missing. Without a compiler the server works without it: a Node process starts the
 * programs of `local-process`, and other backends report what is missing.
 * @returns the path of the binary, or undefined.
 */
export async function ensureAgent() {
  if (!SYSTEMS.includes(process.platform)) return undefined;
  const names = await sources();
  const digest = await digestOf([...names, ...ADDONS.map(({ source }) => relative(SOURCES, source))]);
  const folder = join(FOLDER, digest);
  const binary = join(folder, "coppice-agent");
  if (!existsSync(binary)) {
    const compiler = await findCompiler();
    if (compiler === undefined) {
      console.error(
        "coppice: a C compiler is missing, so a slower Node process stands in for the agent: " +
          `${process.platform === "linux" ? "install one with `sudo apt-get install gcc libc6-dev`" : "install the base system with its toolchain"} and run set-up again.`,
      );
      return undefined;
    }
    await mkdir(folder, { recursive: true });
    const build = () => compile({ compiler: [compiler, ...OWN_FLAGS] }, inputsIn(SOURCES, names), binary);
    await told(`Building the agent with ${compiler}`, build);
    for (const { name, source } of ADDONS)
      await compile({ compiler: [compiler, ...FLAGS, ...ADDON_FLAGS] }, [source], join(folder, name));
  }
  await select(digest);
  return binary;
}

/**
 * Records which build belongs to this checkout. The others stay: a running sandbox may have been started from one
 * of them.
 */
async function select(digest) {
  const record = join(FOLDER, "current");
  const selected = existsSync(record) ? await readFile(record, "utf8") : undefined;
  if (selected === `${digest}\n`) return;
  await writeFile(`${record}.${process.pid}`, `${digest}\n`);
  await rename(`${record}.${process.pid}`, record);
}

/**
 * Compiles C on any system for another one.
 * @param target of zig, such as `x86_64-linux-musl`.
 * @param python has zig as its module `ziglang`.
 */
export async function crossCompile({ target, python, flags }, inputs, binary) {
  const cache = join(TOOLCHAIN, "zig");
  const env = { ...process.env, ZIG_GLOBAL_CACHE_DIR: cache, ZIG_LOCAL_CACHE_DIR: cache };
  const compiler = [python, "-m", "ziglang", "cc", "-target", target, "-s", ...flags];
  await compile({ compiler, env }, inputs, binary);
}

/** Builds the agent for another system: static, but for FreeBSD, of which zig has no static C library. */
export async function crossBuildAgent(target, python, binary) {
  // A macro of musl's own, CMSG_NXTHDR, compares a signed with an unsigned number.
  const flags = target.includes("freebsd") ? FLAGS : [...OWN_FLAGS, "-Wno-sign-compare"];
  await crossCompile({ target, python, flags }, inputsIn(SOURCES, await sources()), binary);
}

/** Builds the addons of a platform. @param target with the oldest C library that they are for. */
export async function crossBuildAddons({ system, processor, target }, python, folder) {
  for (const { name, source } of addonsFor(system, processor))
    await crossCompile({ target, python, flags: [...FLAGS, ...ADDON_FLAGS] }, [source], join(folder, name));
}

/** Builds the agent's FreeBSD sources with stand-ins, for tests on Linux. */
export async function buildAgentOverStandIns(binary) {
  const compiler = await findCompiler();
  if (compiler === undefined) throw new FailedStep("a C compiler is missing");
  const flags = [...OWN_FLAGS, "-DCOPPICE_STANDS_IN_FOR_FREEBSD", "-I", STAND_INS];
  const inputs = [...inputsIn(SOURCES, await sources()), ...inputsIn(STAND_INS, await readdir(STAND_INS))];
  await compile({ compiler: [compiler, ...flags] }, inputs, binary);
}
