import { parseArgs } from "node:util";
import { SandboxError, type VerbAction } from "@coppice/core";
import type { AccessConfig } from "../access-config.js";
import { AuditLog } from "./audit-log.js";
import { auditEventBody } from "./audit-route.js";

/** Prints the audit of the control plane, newest first, a JSON line each: of all tenants, and of refused clients. */
export const auditList: VerbAction<AccessConfig> = {
  usage: "[--tenant acme] [--limit 100]",
  run({ args, config, dataDir, print }) {
    const { values } = parseArgs({
      args: [...args],
      options: { tenant: { type: "string" }, limit: { type: "string", default: "100" } },
    });
    if (!/^[1-9]\d{0,8}$/.test(values.limit))
      throw new SandboxError("usage_invalid", "--limit is a number of entries");
    const log = new AuditLog({ dataDir: dataDir(), ...config.audit });
    try {
      const query = { tenant: values.tenant, limit: Number(values.limit), offset: 0, oldestFirst: false };
      for (const event of log.list(query)) print(JSON.stringify(auditEventBody(event)));
      return 0;
    } finally {
      log.close();
    }
  },
};
