import { messageOf } from "../kernel/errors.js";

export type HealthCheck = (signal: AbortSignal) => Promise<void>;

/** Whether the server can serve, and why not. */
export interface Readiness {
  readonly ready: boolean;
  /** By check: `ok`, or the reason why not. */
  readonly checks: Readonly<Record<string, string>>;
}

const CHECK_TIMEOUT_MS = 2000;

/** The health checks of a server. */
export class Health {
  readonly #checks = new Map<string, HealthCheck>();
  #isStopping = false;

  add(name: string, check: HealthCheck): void {
    this.#checks.set(name, check);
  }

  /** From now on the server is not ready, so that a load balancer looks elsewhere. */
  stopping(): void {
    this.#isStopping = true;
  }

  async readiness(): Promise<Readiness> {
    const results = await Promise.all(
      [...this.#checks].map(async ([name, check]) => [name, await outcome(check)] as const),
    );
    const checks = Object.fromEntries(this.#isStopping ? [["server", "stopping"], ...results] : results);
    return { ready: Object.values(checks).every((result) => result === "ok"), checks };
  }
}

async function outcome(check: HealthCheck): Promise<string> {
  const signal = AbortSignal.timeout(CHECK_TIMEOUT_MS);
  const { promise: late, reject } = Promise.withResolvers<never>();
  const overrun = (): void => reject(new Error(`no answer within ${CHECK_TIMEOUT_MS} ms`));
  signal.addEventListener("abort", overrun, { once: true });
  try {
    await Promise.race([check(signal), late]);
    return "ok";
  } catch (error) {
    return messageOf(error);
  } finally {
    signal.removeEventListener("abort", overrun);
  }
}
