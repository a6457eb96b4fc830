import {
  parseInput,
  permit,
  queryNumber,
  requestOf,
  type Router,
  SandboxError,
  tenantOf,
  type VerbAction,
} from "@coppice/core";
import { z } from "zod";
import { type AuditEvent, AuditLog } from "./audit-log.js";
import type { AccessConfig } from "../access-config.js";

const MAX_PAGE = 500;
const wholeNumber = queryNumber("a number", 9);

const query = z.object({
  limit: wholeNumber.pipe(z.number().min(1).max(MAX_PAGE)).default(100),
  offset: wholeNumber.default(0),
  orderAsc: z.stringbool().default(false),
  tenantID: z.string().optional(),
  tenant: z.string().optional(),
  outcome: z.enum(["allowed", "denied", "error"]).optional(),
  pathPrefix: z.string().max(512).optional(),
});

/** Serves GET /audit/events: a tenant's audit, for its admins. */
export function mountAudit(router: Router, log: () => AuditLog): void {
  router.get("/audit/events", permit("admin"), (ctx) => {
    const data = parseInput(query, Object.fromEntries(requestOf(ctx).url.searchParams));
    const tenant = tenantOf(ctx);
    const asked = data.tenantID ?? data.tenant ?? tenant;
    const { limit, offset, orderAsc: oldestFirst, outcome, pathPrefix } = data;
    const events =
      asked === tenant ? log().list({ tenant, outcome, pathPrefix, limit, offset, oldestFirst }) : [];
    ctx.body = { events: events.map(auditEventBody), count: events.length };
  });
}

/** An entry as clients and the command line see it. */
function auditEventBody(event: AuditEvent) {
  return {
    eventID: String(event.id),
    timestamp: new Date(event.atMs).toISOString(),
    method: event.method,
    path: event.path,
    route: event.route,
    status: event.status,
    outcome: event.outcome,
    tenantID: event.tenant ?? null,
    principalName: event.principal ?? null,
    scopes: event.scopes,
    sandboxID: event.sandbox ?? null,
    address: event.address,
    requestID: event.requestId,
    ...(event.principalType !== undefined && { principalType: event.principalType }),
    ...(event.actor !== undefined && { actor: event.actor }),
  };
}

/** Prints the audit of the control plane, newest first, a JSON line each: of all tenants, and of refused clients. */
export const auditList: VerbAction<AccessConfig> = (command, { config, dataDir, print }) =>
  command
    .description("prints the audit of the control plane, the newest first, a JSON line for each entry")
    .option("--tenant <name>", "only its entries")
    .option("--limit <number>", "how many", "100")
    .addHelpText("after", "\nExample:\n  coppice audit list coppice.yaml --tenant acme --limit 20")
    .action((values) => {
      if (!/^[1-9]\d{0,8}$/.test(values.limit))
        throw new SandboxError("usage_invalid", "--limit is a number of entries");
      const log = new AuditLog({ dataDir: dataDir(), ...config.audit });
      try {
        const query = { tenant: values.tenant, limit: Number(values.limit), offset: 0, oldestFirst: false };
        for (const event of log.list(query)) print(JSON.stringify(auditEventBody(event)));
      } finally {
        log.close();
      }
    });
