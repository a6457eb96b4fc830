import { setTimeout as pause } from "node:timers/promises";

const POLL_MS = 10;

/**
 * Waits until a check answers something truthy, and resolves with that. The limit is for what never comes, so the
 * default suits a busy machine.
 * @throws Error naming what was waited for, and the last answer, after `timeoutMs`.
 */
export async function eventually<T>(
  what: string,
  check: () => T | Promise<T>,
  timeoutMs = 30_000,
): Promise<Exclude<NonNullable<T>, false>> {
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    const answer = await check();
    if (answer) return answer as Exclude<NonNullable<T>, false>;
    if (performance.now() > deadline)
      throw new Error(`${what}: not within ${timeoutMs} ms (last: ${String(answer)})`);
    await pause(POLL_MS);
  }
}
