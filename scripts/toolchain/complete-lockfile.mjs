// Adds to package-lock.json the optional packages of other platforms that npm left out.
//
// npm leaves out what the registry it asked does not carry, and then refuses its own lock file
// (`npm ci`: "Missing: … from lock file"). All of them are prebuilt binaries whose names tell their
// platform, so an entry can be written without a registry.
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { ROOT } from "./project.mjs";

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
export async function completeLockfile() {
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
