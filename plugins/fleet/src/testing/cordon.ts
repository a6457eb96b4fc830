import { setCordon } from "../membership/node-record.js";
import { withEtcd } from "./with-etcd.js";

/** Has a server get no sandboxes from its start on. @param etcd as in the configuration. */
export function cordon(etcd: object, node: string): Promise<void> {
  return withEtcd(etcd, (store) => setCordon(store, node, true));
}
