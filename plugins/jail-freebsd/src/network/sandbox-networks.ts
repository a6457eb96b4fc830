import type { EgressRules } from "@coppice/core/backend";
import type { AddressPool, Lease } from "./address-pool.js";
import type { HostProblem } from "../host/host-problem.js";
import type { JailStack } from "../jails/jail-conf.js";

/** A way to connect jails, with an address and a pf(4) anchor for each. */
export interface SandboxNetworks {
  /** Addresses of connected sandboxes. */
  readonly addresses: AddressPool;
  problems(): Promise<readonly HostProblem[]>;
  /** The problems with which pf(4) does not filter what sandboxes send; also part of `problems`. */
  gaps(): Promise<readonly HostProblem[]>;
  needsAddress(rules: EgressRules): boolean;
  /** Jail parameters for an address, or for none. */
  stackOf(lease: Lease | undefined): JailStack;
  /** Loads the rules of a sandbox before its jail is created. @throws HostCommandError */
  prepare(lease: Lease, rules: EgressRules): Promise<void>;
  /** Connects a new jail whose rules are loaded. @throws HostCommandError */
  connect(jail: string, lease: Lease): Promise<void>;
  /**
   * Replaces the rules of a sandbox and cuts the connections that they forbid, or all of its connections when those are
   * too many.
   * @throws SandboxError invalid_argument, with the old rules in force.
   */
  restrict(lease: Lease, rules: EgressRules): Promise<void>;
  /** Takes a sandbox's own interface, before its jail is removed. A missing one is fine. @throws HostCommandError */
  unplug(lease: Lease): Promise<void>;
  /** Removes the rest of the network of an unplugged sandbox whose jail is gone or not created yet. Keeps the lease. */
  disconnect(lease: Lease): Promise<void>;
  /** Addresses that jails on this host use, by jail name, regardless of leases. */
  found(): Promise<ReadonlyMap<string, string>>;
  /** Removes aliases, interfaces and anchors without a lease. */
  removeOthers(): Promise<void>;
}
