import type { EgressRules, SandboxId } from "@coppice/core/backend";
import type { Lease } from "./network/address-pool.js";
import type { Datasets } from "./zfs/datasets.js";
import { checkEgressRules } from "./network/egress-policy.js";
import type { VnetNetworks } from "./network/vnet-networks.js";

interface SandboxLinkOptions {
  readonly id: SandboxId;
  readonly name: string;
  readonly networks: VnetNetworks;
  readonly datasets: Datasets;
}

/**
 * The network of one sandbox. A sandbox without access has only lo0 until its rules allow more. Its address is leased
 * before any other part is created and released after all are removed, so the lease shows what has to be removed.
 */
export class SandboxLink {
  readonly #options: SandboxLinkOptions;
  #lease: Lease | undefined;
  #isConnected = false;

  constructor(options: SandboxLinkOptions) {
    this.#options = options;
  }

  /** For a sandbox of an earlier server. @param isConnected whether that server had finished connecting it. */
  static async find(options: SandboxLinkOptions, isConnected: boolean): Promise<SandboxLink> {
    const link = new SandboxLink(options);
    link.#lease = await options.networks.addresses.find(options.id);
    link.#isConnected = isConnected && link.#lease !== undefined;
    return link;
  }

  /**
   * Leases an address before the jail is created, if the rules need one.
   * @throws SandboxError invalid_argument, resource_exhausted, unavailable
   */
  async reserve(rules: EgressRules): Promise<void> {
    const { id, networks } = this.#options;
    checkEgressRules(rules);
    if (networks.needsAddress(rules)) this.#lease ??= await networks.addresses.take(id);
  }

  async prepare(rules: EgressRules): Promise<void> {
    if (this.#lease !== undefined) await this.#options.networks.prepare(this.#lease, rules);
  }

  async connect(): Promise<void> {
    const { name, networks } = this.#options;
    if (this.#lease === undefined) return;
    await networks.connect(name, this.#lease);
    this.#isConnected = true;
  }

  /** Replaces the rules, and connects the jail if needed. @throws SandboxError invalid_argument */
  async restrict(rules: EgressRules): Promise<void> {
    const { datasets, id, name, networks } = this.#options;
    checkEgressRules(rules);
    if (this.#isConnected && this.#lease !== undefined) return networks.restrict(this.#lease, rules);
    // Removes the remains of an attempt that failed or was interrupted.
    if (this.#lease !== undefined) {
      await networks.unplug(this.#lease);
      await networks.disconnect(this.#lease);
    }
    if (!networks.needsAddress(rules)) return;
    // Set before the lease: a lease of a `running` sandbox means that it is connected.
    await datasets.set(name, "state", "connecting");
    this.#lease ??= await networks.addresses.take(id);
    await networks.prepare(this.#lease, rules);
    await networks.connect(name, this.#lease);
    await datasets.set(name, "state", "running");
    this.#isConnected = true;
  }
}
