import { join } from "node:path";
import {
  Admissions,
  Clock,
  definePlugin,
  Greeting,
  openedAtStart,
  permit,
  requestOf,
  Templates,
  tenantOf,
  Tenants,
} from "@coppice/core";
import { Counter } from "prom-client";
import { accessConfig } from "./access-config.js";
import { accessGuard, rateLimit } from "./access-guard.js";
import { apiKeysOf, keptDevelopmentKey, KeyStore } from "./keys/key-store.js";
import { auditList, mountAudit } from "./audit/audit-route.js";
import { AuditLog } from "./audit/audit-log.js";
import { auditObserver } from "./audit/audit-observer.js";
import { type JsonWebTokens, jsonWebTokens } from "./json-web-tokens.js";
import { keysCreate, keysList, keysRevoke } from "./keys/key-verbs.js";
import { quotaAdmission, refusedTemplates } from "./quotas.js";
import { REASONS } from "./reasons.js";

/** Authentication and authorization of the control plane, quotas and rate limits of tenants. */
export const plugin = definePlugin({
  name: "access",
  reasons: REASONS,
  config: accessConfig,
  requires: {
    admissions: Admissions,
    clock: Clock,
    greeting: Greeting,
    templates: Templates,
    tenants: Tenants,
  },
  verbs: { keys: { create: keysCreate, list: keysList, revoke: keysRevoke }, audit: { list: auditList } },
  setup(context, { admissions, clock, greeting, templates, tenants }) {
    const { config, log } = context;
    const { developmentKey, audit } = config;
    const store = openedAtStart(() => new KeyStore(context.dataDir()));
    const auditLog = openedAtStart(() => new AuditLog({ dataDir: context.dataDir(), ...audit }));
    for (const file of [store, auditLog]) {
      context.onStart(() => file.open());
      context.onStop(() => file.close());
    }

    const apiKeys = apiKeysOf(store.get, clock);
    const keyFile = (): string => join(context.dataDir(), "development-key");
    const development = new Map<string, string>();
    const useKeys = (): void => {
      const configured = config.apiKeys.map((key, index) => [`configured-${index + 1}`, key] as const);
      apiKeys.use(new Map([...configured, ...development]));
    };
    context.onStart(async () => {
      if (developmentKey !== undefined)
        development.set(
          "development",
          developmentKey === "random" ? await keptDevelopmentKey(keyFile(), log) : developmentKey,
        );
      useKeys();
    });
    let tokens: JsonWebTokens | undefined;
    const useProvider = (): void => {
      tokens = config.jwt && jsonWebTokens({ settings: config.jwt, clock, log });
    };
    useProvider();
    tenants.add(() => (config.jwt === undefined ? apiKeys.tenants() : "any"));
    const warnOfQuotas = (): void => {
      for (const message of refusedTemplates(config.quotas, templates.all())) log.warn(message);
    };
    context.onReload(["apiKeys"], useKeys);
    context.onReload(["jwt"], useProvider);
    context.onReload(["quotas"], warnOfQuotas);
    context.onReload(["rateLimits"]);

    const registers = [context.metrics];
    const refused = new Counter({
      name: "coppice_access_refused_total",
      help: "Requests to the control plane that were not let in, by why.",
      labelNames: ["reason"],
      registers,
    });
    for (const reason of ["unauthenticated", "resource_exhausted"]) refused.inc({ reason }, 0);
    const lost = new Counter({
      name: "coppice_access_audit_lost_total",
      help: "Entries of the audit that could not be written.",
      registers,
    });
    context.guard(
      "api",
      accessGuard({
        apiKeys,
        tokens: () => tokens,
        perAddress: rateLimit(() => config.rateLimits.perAddress),
        perKey: rateLimit(() => config.rateLimits.perKey),
        onRefused: (reason) => refused.inc({ reason }),
      }),
    );
    admissions.add(quotaAdmission(() => config.quotas, clock));
    context.onStart(warnOfQuotas);
    context.diagnose("quotas", async () =>
      refusedTemplates(config.quotas, templates.all()).map((message) => ({ severity: "fail", message })),
    );

    let lostEntries = 0;
    const onLost = (error: unknown): void => {
      lostEntries += 1;
      lost.inc();
      log.error({ err: error }, "an entry of the audit is lost");
    };
    context.observe("api", auditObserver({ log: auditLog.get, clock, onLost }));
    // Serving goes on without an audit, but readiness reports it.
    context.health("audit", async () => (lostEntries === 0 ? undefined : { lost: `${lostEntries} entries` }));

    const router = context.http("api");
    router.get("/auth/whoami", permit("read"), (ctx) => {
      const { principal } = requestOf(ctx);
      ctx.body = {
        tenantID: tenantOf(ctx),
        principalName: principal?.name ?? null,
        scopes: [...(principal?.scopes ?? [])],
      };
    });
    mountAudit(router, auditLog.get);
    greeting.addVariables(() => ({
      E2B_API_KEY:
        developmentKey === "random"
          ? keyExpression(keyFile())
          : "<one of plugins.access, or of coppice keys create>",
    }));
  },
});

/** Shell expression that reads the key: the key itself could end up in a log. */
function keyExpression(file: string): string {
  return `"$(cat '${file.replaceAll("'", "'\\''")}')"`;
}
