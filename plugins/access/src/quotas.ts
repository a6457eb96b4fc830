import {
  type AdmissionCheck,
  type Clock,
  SandboxError,
  type SandboxRecord,
  type TemplateFacts,
} from "@coppice/core";
import type { QuotaSettings, TenantQuota } from "./access-config.js";

export interface QuotasOptions {
  /** By tenant; `everybody` for those not named. */
  readonly settings: QuotaSettings;
  readonly clock: Clock;
}

const COUNTABLE = ["cpuCount", "memoryMiB"] as const;
type Countable = (typeof COUNTABLE)[number];

const WORDS: Readonly<Record<Countable, string>> = { cpuCount: "CPUs", memoryMiB: "MiB of memory" };

/**
 * Says of each template which quotas it is refused by, whatever is left of them: they count by a limit that it lacks.
 * @returns sentences.
 */
export function refusedTemplates(
  { everybody, tenants }: QuotaSettings,
  templates: readonly TemplateFacts[],
): readonly string[] {
  const quotas = [everybody, ...Object.values(tenants)];
  return templates.flatMap(({ name, limits }) =>
    COUNTABLE.filter(
      (what) => limits[what] === undefined && quotas.some((quota) => quota[what] !== undefined),
    ).map(
      (what) => `quotas of ${what} refuse template '${name}': set sandboxes.templates.${name}.limits.${what}`,
    ),
  );
}

/** How many sandboxes a tenant may have, how large together, and how fast it may make them. */
export class Quotas {
  readonly #options: QuotasOptions;
  /** When each tenant's creations were, as far back as its quota looks. */
  readonly #creations = new Map<string, number[]>();

  constructor(options: QuotasOptions) {
    this.#options = options;
  }

  /** To be asked before every creation and growth; the registry lets nothing come between the answer and that. */
  readonly check: AdmissionCheck = (wanted, existing) => {
    const quota = this.#quotaOf(wanted.owner);
    if (quota.sandboxes !== undefined && existing.length >= quota.sandboxes) {
      throw exhausted(
        `you have reached the maximum number of concurrent E2B sandboxes (${quota.sandboxes}). If you need more, ask the operator of this server`,
      );
    }
    for (const what of COUNTABLE) {
      const most = quota[what];
      if (most === undefined) continue;
      const used = sum(existing, what);
      const more = wanted.limits[what];
      if (more === undefined) {
        const text = `template '${wanted.template}' has no limit of ${WORDS[what]}, by which the quota of this tenant counts`;
        throw new SandboxError("failed_precondition", text);
      }
      if (used + more > most) {
        throw exhausted(`you have reached the maximum of ${WORDS[what]} (${most}): ${used} are in use`);
      }
    }
    if (quota.creations !== undefined && wanted.state === "creating")
      this.#take(wanted.owner, quota.creations);
  };

  #quotaOf(tenant: string): TenantQuota {
    const { tenants, everybody } = this.#options.settings;
    return (Object.hasOwn(tenants, tenant) ? tenants[tenant] : undefined) ?? everybody;
  }

  #take(tenant: string, { sandboxes, per }: { readonly sandboxes: number; readonly per: number }): void {
    const nowMs = this.#options.clock.now();
    const recent = (this.#creations.get(tenant) ?? []).filter((atMs) => atMs > nowMs - per);
    const oldestMs = recent.at(-sandboxes);
    if (oldestMs !== undefined) {
      const text = `you have reached the maximum rate of new sandboxes (${sandboxes} in ${per / 1000} s)`;
      throw exhausted(text, Math.max(Math.ceil((oldestMs + per - nowMs) / 1000), 1));
    }
    recent.push(nowMs);
    // To the end: those who made nothing for the longest time come first.
    this.#creations.delete(tenant);
    this.#creations.set(tenant, recent);
    this.#forgetIdle(nowMs);
  }

  /** Tenants of an identity provider have no number: those who make nothing are forgotten. */
  #forgetIdle(nowMs: number): void {
    for (const [tenant, times] of this.#creations) {
      const per = this.#quotaOf(tenant).creations?.per ?? 0;
      if ((times.at(-1) ?? 0) > nowMs - per) return;
      this.#creations.delete(tenant);
    }
  }
}

function sum(records: readonly SandboxRecord[], what: Countable): number {
  return records.reduce((total, { limits }) => total + (limits[what] ?? 0), 0);
}

function exhausted(message: string, retryAfterSeconds = 1): SandboxError {
  return new SandboxError("resource_exhausted", message, { retryAfterSeconds });
}
