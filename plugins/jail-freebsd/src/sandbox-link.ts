import type { EgressRules, SandboxId } from "@coppice/core/backend";
import type { Lease } from "./network/address-pool.js";
import type { Datasets } from "./zfs/datasets.js";
import { checkEgressRules } from "./network/egress-policy.js";
import type { JailStack } from "./jails/jail-conf.js";
import type { SandboxNetworks } from "./network/sandbox-networks.js";

export interface SandboxLinkOptions {
  readonly id: SandboxId;
  /** Of the jail and the dataset. */
  readonly name: string;
  readonly networks: SandboxNetworks;
  readonly datasets: Datasets;
}

/**
 * What connects one sandbox to the outside. One that may reach nothing has lo0 alone, until it may reach more. Its
 * address is leased before anything else of it is made, and as long as any of it may be there: whoever finds the lease
 * knows what to remove.
 */
export class SandboxLink {
  readonly #options: SandboxLinkOptions;
  #lease: Lease | undefined;
  #isConnected = false;

  /** Of a sandbox that is to be made. */
  constructor(options: SandboxLinkOptions) {
    this.#options = options;
  }

  /** Of a sandbox that an earlier server made. @param isConnected whether that server had finished to connect it. */
  static async find(options: SandboxLinkOptions, isConnected: boolean): Promise<SandboxLink> {
    const link = new SandboxLink(options);
    link.#lease = await options.networks.addresses.find(options.id);
    link.#isConnected = isConnected && link.#lease !== undefined;
    return link;
  }

  /**
   * Leases an address for a sandbox whose jail is to be made, where it needs one and has none.
   * @throws SandboxError invalid_argument, resource_exhausted, unavailable
   */
  async reserve(rules: EgressRules): Promise<void> {
    const { id, networks } = this.#options;
    checkEgressRules(rules);
    if (networks.needsAddress(rules)) this.#lease ??= await networks.addresses.take(id);
  }

  /** Parameters of the jail. */
  get stack(): JailStack {
    return this.#options.networks.stackOf(this.#lease);
  }

  /** Has its rules in force, before there is a jail that they are for. @throws HostCommandError */
  async prepare(rules: EgressRules): Promise<void> {
    if (this.#lease !== undefined) await this.#options.networks.prepare(this.#lease, rules);
  }

  /** Connects the jail, which was just made, if it has an address. @throws HostCommandError */
  async connect(): Promise<void> {
    const { name, networks } = this.#options;
    if (this.#lease === undefined) return;
    await networks.connect(name, this.#lease);
    this.#isConnected = true;
  }

  /** Replaces the rules, and connects the jail where that is needed. @throws SandboxError invalid_argument */
  async restrict(rules: EgressRules): Promise<void> {
    const { datasets, id, name, networks } = this.#options;
    checkEgressRules(rules);
    if (this.#isConnected && this.#lease !== undefined) return networks.restrict(this.#lease, rules);
    // A server may have ended, or a program failed, in the middle of what follows.
    if (this.#lease !== undefined) await networks.disconnect(this.#lease);
    if (!networks.needsAddress(rules)) return;
    // Before there is a lease: one of a sandbox that runs would be taken for that of a connection.
    await datasets.set(name, "state", "connecting");
    this.#lease ??= await networks.addresses.take(id);
    await networks.prepare(this.#lease, rules);
    await networks.connect(name, this.#lease);
    await datasets.set(name, "state", "running");
    this.#isConnected = true;
  }
}
