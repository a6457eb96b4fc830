import { randomBytes } from "node:crypto";
import { digestOf } from "@coppice/core";
import { NODES, nodeText } from "../membership/node-record.js";
import { SANDBOXES, sandboxText } from "../records/fleet-sandbox.js";
import type { Change } from "../store/fleet-store.js";
import { FleetSecrets } from "../trust/fleet-secrets.js";
import { withEtcd } from "./with-etcd.js";

const TENANTS = 100;
/** Of no fleet: its record is not used. */
const SECRET = "0".repeat(32);
/** Changes of one commit. */
const BATCH = 100;

/**
 * Records sandboxes of a server that is a member and answers nobody.
 * @param etcd as in the configuration.
 */
export function recordSandboxes(etcd: object, count: number): Promise<void> {
  const node = "elsewhere";
  const facts = { identity: node, address: "http://127.0.0.1:1", version: "0.0.0", joinedAtMs: Date.now() };
  const change = (number: number): Change => {
    const id = `i${randomBytes(10).toString("hex")}`;
    const value = sandboxText({
      node,
      tenant: `tenant-${number % TENANTS}`,
      template: "code-interpreter-v1",
      backend: "linux-namespaces",
      startedAtMs: Date.now(),
      tokenDigest: digestOf(id),
    });
    return { put: SANDBOXES + id, value };
  };
  return withEtcd(etcd, async (store) => {
    await store.commit(
      [],
      [{ put: NODES + node, value: nodeText(node, facts, new FleetSecrets({ secret: SECRET })) }],
    );
    for (let made = 0; made < count; made += BATCH) {
      const length = Math.min(BATCH, count - made);
      await store.commit(
        [],
        Array.from({ length }, (_, index) => change(made + index)),
      );
    }
  });
}
