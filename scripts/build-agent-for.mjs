// Builds the agent for another system than this one.
// usage: node scripts/build-agent-for.mjs TARGET FILE
//
// TARGET is one of zig's, such as x86_64-freebsd.14.0 or aarch64-freebsd.15.0: zig comes from PyPI, with the headers and
// libraries of FreeBSD, but no static ones: that program needs the C library of its system, where set-up links a static
// one by the same flags. `stand-ins` is what is for FreeBSD over stand-ins that run here, for tests.
import { buildAgentOverStandIns, crossBuildAgent } from "./toolchain/agent.mjs";
import { FailedStep } from "./toolchain/step.mjs";
import { ensureZig } from "./toolchain/test-tools.mjs";

const [target, file] = process.argv.slice(2);
if (target === undefined || file === undefined) {
  console.error("usage: node scripts/build-agent-for.mjs TARGET FILE");
  process.exit(64);
}

async function crossBuild() {
  const zig = process.env.COPPICE_ZIG ?? (await ensureZig());
  if (zig === undefined) throw new FailedStep("zig cannot be had: it is the package ziglang of PyPI");
  await crossBuildAgent(target, zig, file);
}

try {
  await (target === "stand-ins" ? buildAgentOverStandIns(file) : crossBuild());
} catch (error) {
  if (!(error instanceof FailedStep)) throw error;
  console.error(`coppice: ${error.message}`);
  process.exitCode = 1;
}
