import { eventually } from "@coppice/core/testing";
import { BenchedServer, WARM } from "./benched-server.js";
import type { BenchmarkOptions, Reading } from "./benchmark.js";

/** Duration of each step in milliseconds, in the order of their starts. */
type Steps = ReadonlyMap<string, number>;

/** Fields of a log line that report a duration. */
interface LogLine {
  readonly msg?: string;
  readonly sandbox?: string;
  readonly program?: string;
  readonly args?: readonly string[];
  readonly durationMs?: number;
  readonly provideMs?: number;
  readonly writeMs?: number;
}

const FEWEST = 3;
const MOST = 100;
const CREATED = "sandbox created";
const FIRST_COMMAND = "POST /commands true";
const LEDGER = "writing the ledger";
const REQUEST = "HTTP, checks, the answer";

/**
 * Steps from the request for a sandbox to the end of its first command, from the log of a separate server: without
 * a pool, and with one. Each row has its share of the whole.
 */
export async function createSteps({ backend, seconds }: BenchmarkOptions): Promise<readonly Reading[]> {
  await using server = await BenchedServer.start(backend, { logLevel: "debug" });
  const cold = await repeated(seconds, () =>
    stepsOf(server, { template: "base", inside: "the backend, beside that" }),
  );
  // The first miss fills the pool.
  await server.killSandbox(await server.createSandbox("warm"));
  const warm = await repeated(seconds, async () => {
    await server.untilThere("a sandbox waits in the pool", WARM);
    return stepsOf(server, { template: "warm", inside: "handing the kernel out" });
  });
  return [
    reading("create: steps of a sandbox that is made, and a first command", cold),
    reading("create: steps of a sandbox from a pool, and a first command", warm),
  ];
}

async function repeated(seconds: number, measure: () => Promise<Steps>): Promise<readonly Steps[]> {
  // The first pays for connections, caches and compilation.
  await measure();
  const endMs = performance.now() + seconds * 1000;
  const found: Steps[] = [];
  while (found.length < FEWEST || (found.length < MOST && performance.now() < endMs))
    found.push(await measure());
  return found;
}

async function stepsOf(
  server: BenchedServer,
  { template, inside }: { readonly template: string; readonly inside: string },
): Promise<Steps> {
  const mark = server.printed.length;
  const startMs = performance.now();
  const sandbox = await server.createSandbox(template);
  const answeredMs = performance.now();
  await server.run(sandbox, "true");
  const endMs = performance.now();
  const isCreated = (line: LogLine): boolean => line.msg === CREATED && line.sandbox === sandbox.id;
  const lines = () => server.printed.slice(mark).map(parse);
  await eventually("the log tells of the sandbox", () => lines().some(isCreated));
  await server.killSandbox(sandbox);
  const all = lines();
  const { provideMs = 0, writeMs = 0 } = all.find(isCreated) ?? {};
  const commands = template === "base" ? all.slice(0, all.findIndex(isCreated)) : [];
  const steps = new Map<string, number>();
  for (const line of commands) {
    const label = labelOf(line);
    if (label !== undefined) steps.set(label, (steps.get(label) ?? 0) + (line.durationMs ?? 0));
  }
  const inCommands = [...steps.values()].reduce((sum, tookMs) => sum + tookMs, 0);
  return new Map([
    ["from the request to the end of the command", endMs - startMs],
    ...steps,
    [inside, Math.max(0, provideMs - inCommands)],
    [LEDGER, writeMs],
    [REQUEST, Math.max(0, answeredMs - startMs - provideMs - writeMs)],
    [FIRST_COMMAND, endMs - answeredMs],
  ]);
}

function parse(line: string): LogLine {
  try {
    return JSON.parse(line) as LogLine;
  } catch {
    return {};
  }
}

/** Label of a duration: a program of the host with its subcommand. */
function labelOf({ msg, program, args = [], durationMs }: LogLine): string | undefined {
  if (durationMs === undefined) return undefined;
  if (program === undefined) return msg;
  const word = program === "zfs" ? args[0] : args.find((each) => /^-[acrR]$/.test(each));
  return word === undefined ? program : `${program} ${word}`;
}

function reading(title: string, found: readonly Steps[]): Reading {
  const labels = new Set(found.flatMap((steps) => [...steps.keys()]));
  const rows = [...labels].map((label) => ({
    label,
    samples: found.flatMap((steps) => steps.get(label) ?? []),
  }));
  return { title, unit: "ms", first: "whole", rows };
}
