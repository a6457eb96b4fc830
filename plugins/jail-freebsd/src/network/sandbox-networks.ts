import type { EgressRules } from "@coppice/core/backend";
import type { AddressPool, Lease } from "./address-pool.js";
import type { HostProblem } from "../host/host-problem.js";
import type { JailStack } from "../jails/jail-conf.js";

/** One way to connect jails, with an address and an anchor of pf(4) for each. */
export interface SandboxNetworks {
  /** What each sandbox has one of that is connected. */
  readonly addresses: AddressPool;
  /** All that the host lacks. */
  problems(): Promise<readonly HostProblem[]>;
  /** True when a sandbox with such rules needs an address. */
  needsAddress(rules: EgressRules): boolean;
  /** What a jail is made with that has this address, or none where it needs none. */
  stackOf(lease: Lease | undefined): JailStack;
  /** Loads the rules of a sandbox that is not connected, before its jail is made. @throws HostCommandError */
  prepare(lease: Lease, rules: EgressRules): Promise<void>;
  /** Connects a jail that is there and has nothing yet but its rules. @throws HostCommandError */
  connect(jail: string, lease: Lease): Promise<void>;
  /**
   * Replaces the rules of a sandbox, and cuts the connections that the new ones do not leave open; all of its
   * connections where those are too many.
   * @throws SandboxError invalid_argument, with the rules as they were.
   */
  restrict(lease: Lease, rules: EgressRules): Promise<void>;
  /** Removes what there is of a connection, whose jail is gone or has none yet. The address stays leased. */
  disconnect(lease: Lease): Promise<void>;
  /** The addresses that jails have on this host, by the names of the jails, whatever is leased. */
  found(): Promise<ReadonlyMap<string, string>>;
  /** Removes what no sandbox has leased. */
  removeOthers(): Promise<void>;
}
