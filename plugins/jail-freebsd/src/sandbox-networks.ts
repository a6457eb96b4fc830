import type { EgressRules } from "@coppice/core/backend";
import type { Lease } from "./address-pool.js";
import type { HostProblem } from "./host-problems.js";
import type { JailStack } from "./jail-conf.js";

/** One way to connect jails, with an address and an anchor of pf(4) for each. */
export interface SandboxNetworks {
  /** All that the host lacks. */
  problems(): Promise<readonly HostProblem[]>;
  /** Whether a sandbox that has such rules needs an address. */
  needsAddress(rules: EgressRules): boolean;
  /** An address for a sandbox. @throws SandboxError resource_exhausted */
  take(): Lease;
  /** Says that a sandbox of an earlier server has an address. Undefined for one that is not of this range. */
  retake(address: string): Lease | undefined;
  /** Gives an address back, after `disconnect` where there was a connection. */
  release(lease: Lease): void;
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
  /** Removes what there is of a connection, whose jail is gone. */
  disconnect(lease: Lease): Promise<void>;
  /** Removes what no sandbox has any more. */
  removeOthers(): Promise<void>;
}
