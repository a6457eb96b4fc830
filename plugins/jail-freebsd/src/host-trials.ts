import { rmdir } from "node:fs/promises";
import { join } from "node:path";
import { messageOf } from "@coppice/core";
import { tryDaemon } from "./host/daemon-trial.js";
import type { HostProblem } from "./host/host-facts.js";
import { HostCommandError } from "./host/host.js";
import type { JailSettings } from "./jail-freebsd-config.js";
import type { Lease } from "./network/address-pool.js";
import type { VnetNetworks } from "./network/vnet-networks.js";
import { AGENT, type Opened } from "./open-host.js";

/** A step in the life of a sandbox, and the remedy for a host on which it fails. */
type Trial = readonly [run: () => Promise<unknown> | undefined, fix: string, severity?: "warn"];

/** Jail and subject of rules that exist only during the trials. */
const NAME = "coppice-doctor";
/** Clone of the template `base` that exists only during the trials. */
const DATASET = "doctor-trial";
const BASH = "pkg -r <its root> install bash, and a link /bin/bash: docs/freebsd.md#templates";
const USAGE = 64;
const EVERYTHING = { allowOut: [], denyOut: [] };
const ACCOUNTING = "put kern.racct.enable=1 into /boot/loader.conf and reboot";
const SEE_STEPS = "see the steps of docs/freebsd.md";

/**
 * Takes a jail on a clone of the template `base` through the life of a sandbox on this host: limits, rules, network,
 * programs, pause and removal. It has the last address of the range, if that is free.
 * @returns the commands that failed, with their output.
 */
export async function trialProblems(opened: Opened, settings: JailSettings): Promise<readonly HostProblem[]> {
  const { datasets, host, jails, networks, programs, rules, templates } = opened;
  const lease = networks && (await lastLease(networks));
  const root = join(settings.directory, NAME);
  const paths = { name: NAME, root, conf: `${root}.conf`, socket: "", helper: "" };
  const { agentInside, devfsRuleset, limits, procfs, sysvipc } = settings;
  const origin = templates.snapshotOf("base");
  const clone = { origin, mountPoint: root, refquotaMiB: limits.diskMiB, properties: {} };
  const mounts = [...templates.get("base").mounts, { source: programs, target: agentInside, readOnly: true }];
  const jail = { name: NAME, hostname: NAME, root, devfsRuleset, procfs, sysvipc, mounts };
  // A program that is for this system, and needs no library of the jail, says how it is used.
  const startsAgent = `${agentInside}/${AGENT}; [ $? = ${USAGE} ]`;
  const removal: readonly Trial[] = [
    [() => lease && networks?.unplug(lease), SEE_STEPS],
    [() => jails.remove(paths), SEE_STEPS],
    [() => lease && networks?.disconnect(lease), SEE_STEPS],
    [() => rules?.remove(NAME), SEE_STEPS],
    [() => datasets.destroy(DATASET), SEE_STEPS],
  ];
  const trials: readonly Trial[] = [
    // Nothing is there yet, or an earlier trial was killed: a part that is gone must not keep the others.
    ...removal,
    [() => datasets.clone(DATASET, clone), SEE_STEPS],
    [() => rules?.set(NAME, limits), ACCOUNTING],
    [() => lease && networks?.prepare(lease, EVERYTHING), "kldload pf, and pf_enable in rc.conf"],
    [() => jails.create(paths, jail), "a kernel with the option VIMAGE, as GENERIC has it"],
    [() => lease && networks?.connect(NAME, lease), SEE_STEPS],
    // Usage of several jails comes without names, in the order of the question.
    [() => rules?.usage([NAME, NAME]), ACCOUNTING],
    [
      () => host.run("jexec", [NAME, "/bin/sh", "-c", startsAgent]),
      "npm run setup, by the compiler of the base system",
    ],
    // By which E2B's SDKs start each command.
    [() => host.run("jexec", [NAME, "/bin/bash", "-l", "-c", "true"]), BASH, "warn"],
    [() => jails.pause(NAME), SEE_STEPS],
    [() => jails.resume(NAME), SEE_STEPS],
    ...removal,
  ];
  const problems = new Map<string, HostProblem>();
  for (const [run, fix, severity] of trials) {
    const message = await (run() ?? Promise.resolve()).then(() => undefined, describe);
    if (message !== undefined) problems.set(message, { message, fix, ...(severity && { severity }) });
  }
  // Not a recursive removal: file systems that could not be unmounted stay whole.
  await rmdir(root).catch(() => undefined);
  return [...problems.values()];
}

/** Has daemon(8) begin a server again whose agent lives on. @returns the failure. */
export async function serviceProblems(
  { agent, host }: Opened,
  settings: JailSettings,
): Promise<HostProblem[]> {
  const { directory, hostOutputLimit: outputLimitBytes, programs } = settings;
  try {
    await tryDaemon(host, {
      agent,
      programs,
      outputLimitBytes,
      directory: join(directory, `${NAME}-daemon`),
    });
    return [];
  } catch (error) {
    return [
      { message: describe(error), fix: "until then: service coppice restart, after each end of the server" },
    ];
  }
}

function describe(error: unknown): string {
  return error instanceof HostCommandError ? `${error.command}: ${error.stderr.trim()}` : messageOf(error);
}

/** Undefined when the jail of a sandbox has that address. What an earlier trial left goes with this one. */
async function lastLease(networks: VnetNetworks): Promise<Lease | undefined> {
  const lease = networks.addresses.last;
  const isUsed = [...(await networks.found())].some(
    ([jail, address]) => jail !== NAME && address === lease.address,
  );
  return isUsed ? undefined : lease;
}
