import { mkdir, rmdir } from "node:fs/promises";
import { join } from "node:path";
import { messageOf } from "@coppice/core";
import type { HostProblem } from "./host/host-problem.js";
import { HostCommandError } from "./host/host.js";
import type { JailSettings } from "./jail-freebsd-config.js";
import type { Lease } from "./network/address-pool.js";
import type { SandboxNetworks } from "./network/sandbox-networks.js";
import type { Opened } from "./open-host.js";

/** A step in the life of a sandbox, and the remedy for a host on which it fails. */
type Trial = readonly [run: () => Promise<unknown> | undefined, fix: string];

/** Jail and subject of rules that exist only during the trials. */
const NAME = "coppice-doctor";
const EVERYTHING = { allowOut: [], denyOut: [] };
const ACCOUNTING = "put kern.racct.enable=1 into /boot/loader.conf and reboot";
const SEE_STEPS = "see the steps of docs/freebsd.md";

/**
 * Takes a jail without processes through the life of a sandbox on this host: limits, rules, network, pause and removal.
 * It has the last address of the range, if that is free.
 * @returns the commands that failed, with their output.
 */
export async function trialProblems(opened: Opened, settings: JailSettings): Promise<readonly HostProblem[]> {
  const { jails, networks, rules } = opened;
  const lease = networks && (await lastLease(networks));
  const root = join(settings.directory, NAME);
  const paths = { name: NAME, root, conf: `${root}.conf`, socket: "", helper: "" };
  const { devfsRuleset, procfs, sysvipc } = settings;
  const stack =
    networks !== undefined && lease !== undefined ? networks.stackOf(lease) : { kind: "own" as const };
  const jail = { name: NAME, hostname: NAME, root, stack, devfsRuleset, procfs, sysvipc, mounts: [] };
  const removal: readonly Trial[] = [
    [() => jails.remove(paths), SEE_STEPS],
    [() => lease && networks?.disconnect(lease), SEE_STEPS],
    [() => rules?.remove(NAME), SEE_STEPS],
  ];
  const trials: readonly Trial[] = [
    // Nothing is there yet, or an earlier trial was killed: a part that is gone must not keep the others.
    ...removal,
    [() => rules?.set(NAME, settings.limits), ACCOUNTING],
    [() => lease && networks?.prepare(lease, EVERYTHING), "kldload pf, and pf_enable in rc.conf"],
    [() => jails.create(paths, jail), "a kernel with the option VIMAGE, as GENERIC has it"],
    [() => lease && networks?.connect(NAME, lease), SEE_STEPS],
    [() => rules?.usage([NAME]), ACCOUNTING],
    [() => jails.pause(NAME), SEE_STEPS],
    [() => jails.resume(NAME), SEE_STEPS],
    ...removal,
  ];
  const problems = new Map<string, HostProblem>();
  for (const name of ["dev", "proc"]) await mkdir(join(root, name), { recursive: true });
  for (const [run, fix] of trials) {
    const message = await (run() ?? Promise.resolve()).then(() => undefined, describe);
    if (message !== undefined) problems.set(message, { message, fix });
  }
  // Not a recursive removal: a devfs that could not be unmounted stays whole.
  for (const path of [join(root, "dev"), join(root, "proc"), root]) await rmdir(path).catch(() => undefined);
  return [...problems.values()];
}

function describe(error: unknown): string {
  return error instanceof HostCommandError ? `${error.command}: ${error.stderr.trim()}` : messageOf(error);
}

/** Undefined when a jail has that address. */
async function lastLease(networks: SandboxNetworks): Promise<Lease | undefined> {
  const lease = networks.addresses.last;
  const used = new Set((await networks.found()).values());
  return used.has(lease.address) ? undefined : lease;
}
