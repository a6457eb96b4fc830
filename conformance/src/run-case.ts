import { messageOf } from "@coppice/core";
import {
  CaseSkipped,
  type ConformanceCase,
  type ConformanceGroup,
  type ConformanceSubject,
} from "./kit/conformance-case.js";
import { ConformanceContext } from "./kit/conformance-context.js";
import { findLeaks, takeHostSnapshot } from "./kit/host-snapshot.js";
import { reasonUnmet } from "./kit/needs.js";

const CASE_TIMEOUT_MS = 30_000;
const TEARDOWN_TIMEOUT_MS = 60_000;

/** The outcome of one case. */
export interface ConformanceResult {
  readonly name: string;
  readonly group: ConformanceGroup;
  readonly outcome: "passed" | "failed" | "skipped";
  readonly reason?: string | undefined;
  readonly error?: unknown;
  readonly durationMs: number;
}

/**
 * Runs one case in a sandbox of its own and looks for remains. Never rejects.
 * @param options.teardownTimeoutMs time for destroying its sandboxes; a minute when absent. Run one case at a time: the
 * descriptors of this process are counted.
 */
export async function runCase(
  each: ConformanceCase,
  subject: ConformanceSubject,
  { teardownTimeoutMs = TEARDOWN_TIMEOUT_MS }: { readonly teardownTimeoutMs?: number } = {},
): Promise<ConformanceResult> {
  const startedAtMs = performance.now();
  const { name, group } = each;
  const result = (outcome: ConformanceResult["outcome"], error?: unknown): ConformanceResult => ({
    name,
    group,
    outcome,
    ...(error !== undefined && { reason: messageOf(error) }),
    ...(outcome === "failed" && { error }),
    durationMs: performance.now() - startedAtMs,
  });
  try {
    await attempt(each, subject, teardownTimeoutMs);
    return result("passed");
  } catch (error) {
    return result(error instanceof CaseSkipped ? "skipped" : "failed", error);
  }
}

/** Lets a backend open its shared resources, so that no case is blamed for them. */
export async function warmUp(subject: ConformanceSubject): Promise<void> {
  const context = new ConformanceContext(subject);
  try {
    await context.open();
    await context.succeed("true");
    await context.write(context.home("warm"), "up");
    await context.read(context.home("warm"));
  } finally {
    await context.within(TEARDOWN_TIMEOUT_MS, "destroying the first sandbox", context.close());
  }
}

async function attempt(
  each: ConformanceCase,
  subject: ConformanceSubject,
  teardownTimeoutMs: number,
): Promise<void> {
  const before = takeHostSnapshot();
  const context = new ConformanceContext(subject);
  const problems: unknown[] = [];
  const collect = (error: unknown): void => void problems.push(error);
  await context.within(CASE_TIMEOUT_MS, "the case", runWithNeeds(each, context)).catch(collect);
  await context.within(teardownTimeoutMs, "destroying what the case made", context.close()).catch(collect);
  const leaks = await findLeaks(subject, before, context.ids);
  if (leaks.length > 0) problems.push(new Error(`left behind: ${leaks.join("; ")}`));
  if (problems.length === 1) throw problems[0];
  if (problems.length > 1) throw new AggregateError(problems, problems.map(messageOf).join("\n"));
}

async function runWithNeeds(each: ConformanceCase, context: ConformanceContext): Promise<void> {
  await context.open();
  for (const need of each.needs ?? []) {
    const reason = await reasonUnmet(need, context);
    if (reason !== undefined) throw new CaseSkipped(reason);
  }
  await each.run(context);
}
