import type { EgressRules } from "@coppice/core/backend";
import type { Lease } from "./address-pool.js";
import type { Datasets } from "./datasets.js";
import { checkEgressRules } from "./egress-policy.js";
import type { JailStack } from "./jail-conf.js";
import type { SandboxNetworks } from "./sandbox-networks.js";

export interface SandboxLinkOptions {
  /** Of the jail and the dataset. */
  readonly name: string;
  readonly networks: SandboxNetworks;
  readonly datasets: Datasets;
  /** What stands in `ADDRESS` of its dataset from an earlier server; empty when nothing does. */
  readonly found?: string | undefined;
}

/** The property of a dataset with the address that its sandbox has. */
export const ADDRESS = "address";
/** After an address, while a sandbox that runs is being connected. */
const UNFINISHED = "/unfinished";

/**
 * What connects one sandbox to the outside. One that may reach nothing has lo0 alone, until it may reach more. Its
 * address stands in a property of its dataset before anything else of it is made, and as long as the dataset does:
 * whoever finds the dataset knows what to remove.
 */
export class SandboxLink {
  readonly #options: SandboxLinkOptions;
  #lease: Lease | undefined;
  #isConnected: boolean;

  constructor(options: SandboxLinkOptions) {
    const { found = "", networks } = options;
    this.#options = options;
    this.#lease = retakeAddress(networks, found);
    this.#isConnected = this.#lease !== undefined && !found.endsWith(UNFINISHED);
  }

  /**
   * Takes an address for a sandbox that is to be made, where it needs one.
   * @returns the properties that its dataset is to be made with.
   * @throws SandboxError invalid_argument, resource_exhausted
   */
  reserve(rules: EgressRules): Readonly<Record<string, string>> {
    const { networks } = this.#options;
    checkEgressRules(rules);
    if (!networks.needsAddress(rules)) return {};
    this.#lease = networks.take();
    return { [ADDRESS]: this.#lease.address };
  }

  /** What the jail is to be made with. */
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
    const { datasets, name, networks } = this.#options;
    checkEgressRules(rules);
    if (this.#isConnected && this.#lease !== undefined) return networks.restrict(this.#lease, rules);
    if (!networks.needsAddress(rules)) return;
    this.#lease ??= networks.take();
    const { address } = this.#lease;
    await datasets.set(name, ADDRESS, address + UNFINISHED);
    // A server may have ended, or a program failed, in the middle of this.
    await networks.disconnect(this.#lease);
    await networks.prepare(this.#lease, rules);
    await networks.connect(name, this.#lease);
    await datasets.set(name, ADDRESS, address);
    this.#isConnected = true;
  }

  /** Removes it from a jail that is gone. The address stays taken until `release`. */
  async remove(): Promise<void> {
    if (this.#lease !== undefined) await this.#options.networks.disconnect(this.#lease);
  }

  /** Gives the address back, after the dataset went that had it. */
  release(): void {
    if (this.#lease !== undefined) this.#options.networks.release(this.#lease);
    this.#lease = undefined;
  }
}

/** Says that somebody has the address that stands in `ADDRESS` of a dataset. */
export function retakeAddress(networks: SandboxNetworks, found: string): Lease | undefined {
  return networks.retake(found.replace(UNFINISHED, ""));
}
