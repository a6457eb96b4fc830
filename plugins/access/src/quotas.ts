import { type Admissions, type Clock, SandboxError, type TemplateFacts } from "@coppice/core";
import type { QuotaSettings, TenantQuota } from "./access-config.js";
import { REASONS } from "./reasons.js";

type Admission = Parameters<Admissions["add"]>[0];

const COUNTABLE = ["cpuCount", "memoryMiB"] as const;
type Countable = (typeof COUNTABLE)[number];

const WORDS: Readonly<Record<Countable, string>> = { cpuCount: "CPUs", memoryMiB: "MiB of memory" };
const STORED = { volume: "volumes", snapshot: "snapshots" } as const;

/** Describes for each template the quotas that refuse it in any case: they count a limit that it lacks. */
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

/**
 * The admission of every creation and growth; the registry lets no other decision come in between.
 * @param settings called at each decision.
 */
export function quotaAdmission(settings: () => QuotaSettings, clock: Clock): Admission {
  /** Times of each tenant's creations, as far back as its quota looks. */
  const creations = new Map<string, number[]>();
  const quotaOf = (tenant: string): TenantQuota => {
    const { tenants, everybody } = settings();
    return (Object.hasOwn(tenants, tenant) ? tenants[tenant] : undefined) ?? everybody;
  };

  /** An identity provider may have any number of tenants: idle ones are dropped. */
  const forgetIdle = (nowMs: number): void => {
    for (const [tenant, times] of creations) {
      const per = quotaOf(tenant).creations?.per ?? 0;
      if ((times.at(-1) ?? 0) > nowMs - per) return;
      creations.delete(tenant);
    }
  };

  /** @returns what counts the creation. @throws SandboxError quota_reached */
  const rated = (tenant: string, { sandboxes, per }: NonNullable<TenantQuota["creations"]>): (() => void) => {
    const nowMs = clock.now();
    const recent = (creations.get(tenant) ?? []).filter((atMs) => atMs > nowMs - per);
    const oldestMs = recent.at(-sandboxes);
    if (oldestMs !== undefined) {
      const text = `you have reached the maximum rate of new sandboxes (${sandboxes} in ${per / 1000} s; access.quotas, creations)`;
      throw exhausted(text, Math.max(Math.ceil((oldestMs + per - nowMs) / 1000), 1));
    }
    return () => {
      recent.push(nowMs);
      // Moved to the end of the map, so that the tenants that were idle longest come first.
      creations.delete(tenant);
      creations.set(tenant, recent);
      forgetIdle(nowMs);
    };
  };

  const check: Admission["check"] = (wanted, existing) => {
    const quota = quotaOf(wanted.owner);
    if (quota.sandboxes !== undefined && existing.length >= quota.sandboxes)
      throw exhausted(
        `you have reached the maximum number of concurrent E2B sandboxes (${quota.sandboxes}). If you need more, ask the operator of this server`,
      );
    for (const what of COUNTABLE) {
      const most = quota[what];
      if (most === undefined) continue;
      const used = sum(existing, what);
      const more = wanted.limits[what];
      if (more === undefined) {
        const text = `template '${wanted.template}' has no limit of ${WORDS[what]}, by which the quota of this tenant counts`;
        throw new SandboxError(REASONS.template_without_limit, text);
      }
      if (used + more > most) {
        const text = `you have reached the quota of ${most} ${WORDS[what]} (access.quotas, ${what}): ${used} are in use`;
        throw exhausted(text);
      }
    }
    if (quota.creations === undefined || wanted.state !== "creating") return undefined;
    return rated(wanted.owner, quota.creations);
  };
  const checkStorage: Admission["checkStorage"] = (owner, { kind, sizeMiB }, existing) => {
    const quota = quotaOf(owner);
    const most = quota[STORED[kind]];
    if (most !== undefined && existing.filter((one) => one.kind === kind).length >= most)
      throw exhausted(
        `you have reached the quota of ${most} ${STORED[kind]} (access.quotas, ${STORED[kind]})`,
      );
    const used = existing.reduce((total, one) => total + one.sizeMiB, 0);
    if (quota.storageMiB !== undefined && used + sizeMiB > quota.storageMiB) {
      const text = `${sizeMiB} MiB are more than what is left of the quota of ${quota.storageMiB} MiB (access.quotas, storageMiB): ${used} are in use`;
      throw exhausted(text);
    }
  };
  return {
    check,
    checkStorage,
    counts: (owner) => {
      const { sandboxes, cpuCount, memoryMiB } = quotaOf(owner);
      return (sandboxes ?? cpuCount ?? memoryMiB) !== undefined;
    },
  };
}

function sum(records: readonly Parameters<Admission["check"]>[1][number][], what: Countable): number {
  return records.reduce((total, { limits }) => total + (limits[what] ?? 0), 0);
}

function exhausted(message: string, retryAfterSeconds = 1): SandboxError {
  return new SandboxError(REASONS.quota_reached, message, { retryAfterSeconds });
}
