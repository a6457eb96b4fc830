import { randomBytes } from "node:crypto";
import { digestOf } from "@coppice/core";
import { fakeClock } from "@coppice/core/testing";
import { fleetConfig } from "../fleet-config.js";
import { NODES, nodeText } from "../membership/node-record.js";
import { SANDBOXES, sandboxText } from "../records/fleet-sandbox.js";
import type { Change } from "../store/fleet-store.js";
import { openStore } from "../store/open-store.js";

const TENANTS = 100;
/** Changes of one commit; etcd takes 128. */
const BATCH = 100;

/**
 * Records sandboxes of a server that is a member and answers nobody.
 * @param etcd as in the configuration.
 */
export async function recordSandboxes(etcd: object, count: number): Promise<void> {
  const config = fleetConfig.parse({ address: "http://127.0.0.1:1", secret: "5eed".repeat(16), etcd });
  const store = openStore(config, fakeClock());
  const node = "elsewhere";
  const facts = { identity: node, address: "http://127.0.0.1:1", version: "0.0.0", joinedAtMs: Date.now() };
  try {
    await store.commit([], [{ put: NODES + node, value: nodeText(facts) }]);
    for (let made = 0; made < count; made += BATCH) {
      const changes = Array.from({ length: Math.min(BATCH, count - made) }, (_, index): Change => {
        const id = `i${randomBytes(13).toString("base64url").toLowerCase().replaceAll(/[-_]/g, "0")}`;
        const value = sandboxText({
          node,
          tenant: `tenant-${(made + index) % TENANTS}`,
          template: "code-interpreter-v1",
          backend: "linux-namespaces",
          startedAtMs: Date.now(),
          tokenDigest: digestOf(id),
        });
        return { put: SANDBOXES + id, value };
      });
      await store.commit([], changes);
    }
  } finally {
    await store.close();
  }
}
