import { systemClock } from "../kernel/clock.js";
import { messageOf } from "../kernel/errors.js";
import { currentOwner, runAs } from "../kernel/owner.js";
import { within } from "../kernel/time.js";

/** Details of a healthy part of the server: values by name. */
export type HealthDetails = Readonly<Record<string, string>>;

/** Rejects with the reason of a malfunction. The values that it resolves with are shown beside `ok`. */
export type HealthCheck = (signal: AbortSignal) => Promise<HealthDetails | undefined | void>;

export interface Readiness {
  readonly ready: boolean;
  /** By check: `ok`, or the reason of its failure. */
  readonly checks: Readonly<Record<string, string>>;
  /** Details of the checks that have any. */
  readonly details: Readonly<Record<string, HealthDetails>>;
}

const CHECK_TIMEOUT_MS = 2000;

export class Health {
  readonly #checks = new Map<string, { readonly owner: string; readonly check: HealthCheck }>();
  #isStopping = false;

  /** @throws Error that names both plugins when there is one of that name. */
  add(name: string, check: HealthCheck): void {
    const owner = currentOwner();
    const other = this.#checks.get(name);
    if (other !== undefined)
      throw new Error(`'${other.owner}' and '${owner}' both have a health check named '${name}'`);
    this.#checks.set(name, { owner, check });
  }

  /** From now on the server is not ready, so that load balancers stop using it. */
  stopping(): void {
    this.#isStopping = true;
  }

  async readiness(): Promise<Readiness> {
    const results = await Promise.all(
      [...this.#checks].map(
        async ([name, { owner, check }]) => [name, await runAs(owner, () => outcome(check))] as const,
      ),
    );
    const checks = Object.fromEntries(results.map(([name, { result }]) => [name, result]));
    const told = results.flatMap(([name, { details }]) => (details === undefined ? [] : [[name, details]]));
    return {
      ready: !this.#isStopping && Object.values(checks).every((result) => result === "ok"),
      checks: this.#isStopping ? { server: "stopping", ...checks } : checks,
      details: Object.fromEntries(told) as Record<string, HealthDetails>,
    };
  }
}

async function outcome(check: HealthCheck): Promise<{ result: string; details?: HealthDetails | undefined }> {
  try {
    const details = await within(check, {
      clock: systemClock,
      timeoutMs: CHECK_TIMEOUT_MS,
      overdue: () => new Error(`no answer within ${CHECK_TIMEOUT_MS} ms`),
    });
    return { result: "ok", details: details ?? undefined };
  } catch (error) {
    return { result: messageOf(error) };
  }
}
