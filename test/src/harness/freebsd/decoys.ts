import { randomBytes } from "node:crypto";
import { join } from "node:path";
import { type FreebsdHost, FREEBSD_SOURCES } from "./freebsd-host.js";

const SCRIPT = join(FREEBSD_SOURCES, "decoys.sh");

/**
 * A pool, datasets, a jail, rules and links on a FreeBSD host whose names resemble ours, but that belong to others.
 */
export interface Decoys {
  /** Describes the decoys and the history of their pool. The text differs after any change of them. */
  show(): Promise<string>;
  /** Descriptions of remains of sandboxes beside the decoys. */
  leaks(): Promise<readonly string[]>;
}

/**
 * Makes them. The pool's datasets have the same owner property as those of an installation in the host's directory.
 */
export async function plantDecoys(host: FreebsdHost): Promise<Decoys> {
  await host.run(SCRIPT, "plant", host.directory, await ownerOn(host));
  return {
    show: () => host.run(SCRIPT, "show", host.directory),
    leaks: async () => (await host.leaks()).filter((leak) => !/decoy|epair7[ab]/.test(leak)),
  };
}

/** Owner property of the datasets of such an installation. */
async function ownerOn(host: FreebsdHost): Promise<string> {
  const { settings } = host;
  const backend = host.backend();
  const id = `test${randomBytes(8).toString("hex")}`;
  const spec = { id, template: "base", limits: {}, allowInternetAccess: false };
  const sandbox = await backend.provision(spec, new AbortController().signal);
  const words = ["get", "-H", "-o", "value", "coppice:owner", `${settings.dataset}/e2b-${id}`];
  const owner = await host.run(settings.programs.zfs, ...words);
  await sandbox.destroy();
  await backend.close();
  return owner.trim();
}
