// Fuzzes the parser of the agent's frames, with the sanitizers for addresses and undefined behaviour on.
// usage: node scripts/fuzz-agent.mjs [SECONDS]
//
// With clang: libFuzzer. On Debian as root it is installed when it is missing. Without it, with whatever
// compiler there is: frames from a generator with a seed, which finds less.
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { canFuzz, ensureTestPackages } from "./toolchain/debian-packages.mjs";
import { ROOT, TOOLCHAIN } from "./toolchain/project.mjs";
import { mustRunStep } from "./toolchain/step.mjs";

const SOURCES = ["fuzz-frames.c", "frames.c"].map((name) => join(ROOT, "agent", "native", name));
const FLAGS = "-std=c11 -D_GNU_SOURCE -g -O1 -fno-omit-frame-pointer -fno-sanitize-recover=all".split(" ");
const ROUNDS_PER_SECOND = 100_000;

async function fuzzWithClang(program, seconds) {
  const corpus = join(TOOLCHAIN, "agent", "corpus");
  await mkdir(corpus, { recursive: true });
  await mustRunStep("building the fuzz target", "clang", [
    ...FLAGS,
    "-fsanitize=fuzzer,address,undefined",
    ...SOURCES,
    "-o",
    program,
  ]);
  await mustRunStep("fuzzing", program, [
    `-max_total_time=${seconds}`,
    "-max_len=8192",
    "-timeout=5",
    "-print_final_stats=1",
    `-artifact_prefix=${join(TOOLCHAIN, "agent", "crash-")}`,
    corpus,
  ]);
}

async function fuzzWithAnyCompiler(program, seconds) {
  const flags = [...FLAGS, "-fsanitize=address,undefined", "-DCOPPICE_FUZZ_MAIN"];
  await mustRunStep("building the fuzz target", "cc", [...flags, ...SOURCES, "-o", program]);
  await mustRunStep("fuzzing", program, [String(Date.now()), String(seconds * ROUNDS_PER_SECOND)]);
}

const seconds = Number(process.argv[2] ?? 30);
const folder = await mkdtemp(join(tmpdir(), "coppice-fuzz-"));
try {
  await ensureTestPackages();
  const fuzz = canFuzz() ? fuzzWithClang : fuzzWithAnyCompiler;
  await fuzz(join(folder, "fuzz-frames"), seconds);
} catch (error) {
  console.error(`coppice: ${error.message}`);
  process.exitCode = 1;
} finally {
  await rm(folder, { recursive: true, force: true });
}
