import type { Sandbox } from "@coppice/core/backend";
import type { ConformanceContext } from "./conformance-context.js";
import { OutputReader } from "./output-reader.js";

export interface Ticking {
  readonly ticks: number;
  /** True when no count was skipped or repeated. */
  readonly isGapless: boolean;
  until(ticks: number): Promise<void>;
  kill(): Promise<void>;
}

/** Starts a process that prints a counter. */
export async function startTicking(context: ConformanceContext, sandbox: Sandbox): Promise<Ticking> {
  const script = "i=0; while :; do i=$((i + 1)); echo $i; sleep 0.02; done";
  const started = await context.start(script, { in: sandbox });
  const reader = new OutputReader(started);
  const lines = (): string[] => reader.text.split("\n").slice(0, -1);
  return {
    get ticks() {
      return lines().length;
    },
    get isGapless() {
      return lines().every((line, index) => line === String(index + 1));
    },
    until: (ticks) => context.until("it ticks", () => lines().length >= ticks),
    async kill() {
      await started.kill("SIGKILL");
      await reader.ended;
    },
  };
}
