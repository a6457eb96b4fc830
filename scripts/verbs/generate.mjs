import { existsSync } from "node:fs";
import { readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { build, prepare } from "../toolchain/prepare.mjs";
import { checkManuals, checkInterface, requireBinary } from "../toolchain/lint.mjs";
import { ROOT } from "../toolchain/project.mjs";
import { mustRunStep } from "../toolchain/step.mjs";

const BUF = join(ROOT, "node_modules", "@bufbuild", "buf", "bin", "buf");

/**
 * Writes the generated files that are committed: protobuf code, core's interface reports, the manual and the schema
 * of the configuration, the catalogue of errors, and the missing entries of the lock file.
 */
export async function run() {
  requireBinary("buf");
  const toolchain = await prepare({ needsPython: false });
  const environment = { ...toolchain.environment };
  environment.PATH = `${join(ROOT, "node_modules", ".bin")}:${environment.PATH}`;
  for (const name of await readdir(join(ROOT, "plugins"))) {
    const cwd = join(ROOT, "plugins", name);
    if (!existsSync(join(cwd, "buf.gen.yaml"))) continue;
    await mustRunStep(`buf generate in plugins/${name}`, toolchain.node, [BUF, "generate"], {
      cwd,
      env: environment,
    });
  }
  await completeLockfile();
  await build(toolchain);
  await checkInterface(toolchain, true);
  await checkManuals(toolchain, true);
}

const SYSTEMS = ["android", "darwin", "freebsd", "linux", "openharmony", "win32"];
const PROCESSORS = { aarch64: "arm64", armv7: "arm", x86_64: "x64" };

/** Parts of a package name that name its platform, as in `@oxfmt/binding-linux-arm-musleabihf`. */
function platformOf(name) {
  const parts = name.split("/").at(-1).split("-");
  const start = parts.findIndex((part) => SYSTEMS.includes(part));
  const [system, processor, abi = ""] = parts.slice(start);
  const libc = system !== "linux" || abi === "" ? undefined : abi.startsWith("musl") ? "musl" : "glibc";
  return { os: [system], cpu: [PROCESSORS[processor] ?? processor], ...(libc && { libc: [libc] }) };
}

/** Writes the missing entries. @returns their names. */
async function completeLockfile() {
  const path = join(ROOT, "package-lock.json");
  const lock = JSON.parse(await readFile(path, "utf8"));
  const added = [];
  for (const { optionalDependencies = {}, dev } of Object.values(lock.packages)) {
    for (const [name, version] of Object.entries(optionalDependencies)) {
      const key = `node_modules/${name}`;
      if (key in lock.packages) continue;
      const { cpu, libc, os } = platformOf(name);
      // In the order in which npm writes them.
      lock.packages[key] = { version, cpu, ...(dev && { dev }), ...(libc && { libc }), optional: true, os };
      added.push(name);
    }
  }
  if (added.length === 0) return added;
  const sorted = Object.entries(lock.packages).sort(([a], [b]) => a.localeCompare(b, "en"));
  lock.packages = Object.fromEntries(sorted);
  await writeFile(path, `${JSON.stringify(lock, undefined, 2)}\n`);
  return added;
}
