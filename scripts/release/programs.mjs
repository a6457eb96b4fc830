import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { crossBuildAddons, crossBuildAgent, crossCompile } from "../toolchain/agent.mjs";
import { ROOT } from "../toolchain/project.mjs";

/**
 * Platforms that a release has native programs for, with zig's names. Programs for Linux are static, with musl. Addons
 * use the C library of Node, at least that of 2018. Programs for FreeBSD use its C library of 14.0 or newer.
 */
export const PLATFORMS = {
  "linux-x64": { programs: "x86_64-linux-musl", addons: "x86_64-linux-gnu.2.28" },
  "linux-arm64": { programs: "aarch64-linux-musl", addons: "aarch64-linux-gnu.2.28" },
  "freebsd-x64": { programs: "x86_64-freebsd.14.0" },
};
/** Musl's `sys/mount.h` has no constants of `mount_setattr`. */
const LAUNCHER_FLAGS = [
  "-std=c17",
  "-O2",
  "-static",
  "-fstack-protector-strong",
  "-include",
  "linux/mount.h",
];

/**
 * Builds the agent, its addons and the launcher of linux-namespaces for a platform. Needs the build.
 * @param python has zig as its module `ziglang`.
 */
export async function buildPrograms(platform, python, folder) {
  const { programs, addons } = PLATFORMS[platform];
  const [system, processor] = platform.split("-");
  await mkdir(folder, { recursive: true });
  await crossBuildAgent(programs, python, join(folder, "coppice-agent"));
  if (system !== "linux") return;
  await crossBuildAddons({ system, processor, target: addons }, python, folder);
  const plugin = join(ROOT, "plugins", "linux-namespaces", "dist", "launcher", "host-programs.js");
  const launcher = await (await import(plugin)).launcherSources();
  const options = { target: programs, python, flags: LAUNCHER_FLAGS };
  await crossCompile(options, launcher.programs, join(folder, launcher.name));
}
