// Compares the agent with its floor: a C program that starts `true` and waits for it.
// usage: node agent/dist/bench/run.js [ROUNDS] [HEAP_MB]
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { monitorEventLoopDelay } from "node:perf_hooks";
import { fileURLToPath } from "node:url";
import { type AgentConnection, startHostAgent } from "../index.js";

const NATIVE = fileURLToPath(new URL("../../native", import.meta.url));
const PROGRAM = "/bin/true";
const RUNS_PER_ROUND = 400;
const WIDTHS = [1, 16];

interface Round {
  readonly tookMs: readonly number[];
  readonly totalMs: number;
}

function floor(program: string, width: number): Round {
  const output = execFileSync(program, [String(RUNS_PER_ROUND), String(width), PROGRAM], {
    encoding: "utf8",
  });
  const lines = output.trim().split("\n");
  const total = Number(lines.pop()?.split(" ")[1]);
  return { tookMs: lines.map((line) => Number(line) / 1_000), totalMs: total / 1_000 };
}

async function throughAgent(agent: AgentConnection, width: number): Promise<Round> {
  const tookMs: number[] = [];
  const startMs = performance.now();
  const work = async (): Promise<void> => {
    for (let left = RUNS_PER_ROUND / width; left > 0; left--) {
      const beganMs = performance.now();
      const started = await agent.spawn({ path: PROGRAM, args: [], env: {}, cwd: "/", input: "none" });
      for await (const _ of started.output);
      await started.exit;
      tookMs.push(performance.now() - beganMs);
    }
  };
  await Promise.all(Array.from({ length: width }, work));
  return { tookMs, totalMs: performance.now() - startMs };
}

function percentile(samples: readonly number[], percent: number): number {
  const sorted = samples.toSorted((one, other) => one - other);
  return sorted[Math.max(0, Math.ceil((percent / 100) * sorted.length) - 1)] ?? Number.NaN;
}

function report(name: string, rounds: readonly Round[], floorMs?: number): number {
  const samples = rounds.flatMap((round) => round.tookMs);
  const perSecond = percentile(
    rounds.map((round) => (RUNS_PER_ROUND * 1_000) / round.totalMs),
    50,
  );
  const p50 = percentile(samples, 50);
  const ratio = floorMs === undefined ? "" : `, ${(p50 / floorMs).toFixed(2)}x the floor`;
  const figures = `p50 ${p50.toFixed(2)} ms, p99 ${percentile(samples, 99).toFixed(2)} ms, ${perSecond.toFixed(0)}/s`;
  process.stdout.write(`${name}: ${figures}${ratio}\n`);
  return p50;
}

const rounds = Number(process.argv[2] ?? 10);
const heapMb = Number(process.argv[3] ?? 0);
const heap = Array.from({ length: heapMb }, () => Buffer.alloc(1_048_576, 1));
const folder = mkdtempSync(join(tmpdir(), "coppice-bench-"));
const program = join(folder, "bench-spawn");
execFileSync("cc", ["-O2", "-D_GNU_SOURCE", join(NATIVE, "bench-spawn.c"), "-o", program]);
const agent = await startHostAgent();
try {
  process.stdout.write(`a heap of ${heap.length} MB more than usual\n`);
  for (const width of WIDTHS) {
    await throughAgent(agent, width);
    const floors: Round[] = [];
    const agents: Round[] = [];
    const delay = monitorEventLoopDelay({ resolution: 1 });
    // In turns, so that other load on this machine affects both alike.
    for (let round = 0; round < rounds; round++) {
      floors.push(floor(program, width));
      delay.enable();
      agents.push(await throughAgent(agent, width));
      delay.disable();
    }
    const floorMs = report(`posix_spawn in C, ${width} at a time`, floors);
    report(`agent, ${width} at a time`, agents, floorMs);
    process.stdout.write(`event loop: p99 ${(delay.percentile(99) / 1e6).toFixed(2)} ms late\n`);
  }
} finally {
  await agent.close();
  rmSync(folder, { recursive: true, force: true });
}
