import { chmod, copyFile, mkdir, rename } from "node:fs/promises";
import { dirname, join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { agentBinary } from "@coppice/agent";
import { digestOf, type Logger } from "@coppice/core";
import type { AddressLeases, NetworkLeases } from "@coppice/core/backend";
import { AddressPool } from "./network/address-pool.js";
import { Datasets } from "./zfs/datasets.js";
import { type EnforcedLimit, enforcedLimits } from "./host/host-facts.js";
import { Host } from "./host/host.js";
import type { JailSettings } from "./jail-freebsd-config.js";
import { JexecHelpers } from "./jails/jexec-helpers.js";
import { Jails } from "./jails/jails.js";
import { ResourceRules } from "./jails/resource-rules.js";
import { Templates } from "./sandbox-root.js";
import { ImageDatasets } from "./zfs/image-datasets.js";
import { ImageJails } from "./zfs/image-jails.js";
import { UsageSampler } from "./zfs/usage-sampler.js";
import { VnetNetworks } from "./network/vnet-networks.js";
import { VolumeDatasets } from "./zfs/volume-datasets.js";

export interface Opened {
  readonly host: Host;
  readonly agent: string;
  readonly datasets: Datasets;
  readonly jails: Jails;
  readonly helpers: JexecHelpers;
  readonly templates: Templates;
  readonly volumes: VolumeDatasets;
  readonly images: ImageDatasets;
  /** Keeps other servers from this directory; absent where it is only looked at. */
  readonly lock: DatabaseSync | undefined;
  readonly leases: NetworkLeases;
  readonly networks: VnetNetworks | undefined;
  readonly rules: ResourceRules | undefined;
  readonly usage: UsageSampler;
  readonly limits: readonly EnforcedLimit[];
  /** Directory on the host with the agent program alone, mounted in every jail. */
  readonly programs: string;
}

interface OpenHostOptions {
  readonly settings: JailSettings;
  readonly leases: AddressLeases;
  readonly log: Logger;
  readonly names: () => readonly string[];
  /** True for an agent of this process alone. That of the server has one user at a time, and the sandboxes end with it. */
  readonly isPrivate: boolean;
}

/** File name of the agent program in the directory mounted in every jail. */
export const AGENT = "coppice-agent";
/** Length of sun_path without its NUL, 103 on FreeBSD, which has the shortest. */
const LONGEST_SOCKET_PATH = 103;
const LONGEST_ID = 64;
const OWNER_DIGITS = 16;
const SQLITE_BUSY = 5;

/** @throws Error with the reason why this host cannot be used */
export async function openHost(options: OpenHostOptions): Promise<Opened> {
  if (options.isPrivate) return openParts(options, undefined);
  const { directory } = options.settings;
  await mkdir(directory, { recursive: true, mode: 0o700 });
  const lock = takeLock(join(directory, "server.lock"));
  // It would take the agents of the other one's sandboxes, whatever its data directory is.
  if (lock === undefined) throw new Error(`another server uses the directory ${directory} of jail-freebsd`);
  try {
    return await openParts(options, lock);
  } catch (error) {
    lock.close();
    throw error;
  }
}

async function openParts(options: OpenHostOptions, lock: DatabaseSync | undefined): Promise<Opened> {
  const { isPrivate, leases: allLeases, log, names, settings } = options;
  const { dataset, directory, hostCommandTimeout, hostOutputLimit, network, programs } = settings;
  const agent = settings.agent ?? agentBinary();
  if (agent === undefined)
    throw new Error("the agent has not been built: install a C compiler and run set-up");
  const longest = join(directory, "sockets", "x".repeat(LONGEST_ID));
  if (Buffer.byteLength(longest) > LONGEST_SOCKET_PATH) throw new Error(`directory ${directory} is too long`);
  for (const name of ["conf", "roots", "sockets", "helpers", "programs", "volumes", "images"]) {
    // Root of a sandbox can create setuid files, which users of the host must not reach.
    await mkdir(join(directory, name), { recursive: true, mode: 0o700 });
    // For a directory that existed before.
    await chmod(join(directory, name), 0o700);
  }
  const host = new Host({
    programs,
    agent,
    socket: isPrivate ? undefined : join(directory, "host.sock"),
    timeoutMs: hostCommandTimeout,
    outputLimitBytes: hostOutputLimit,
    log,
  });
  const owner = installationOf(directory);
  const leases = allLeases.of(`jail-freebsd-${owner}`);
  const datasets = new Datasets(host, { parent: dataset, owner });
  const rules = new ResourceRules(host, settings.limits);
  const reason = await rules.unavailableReason();
  if (reason !== undefined) log.warn({ reason }, "limits of sandboxes are not enforced, except for disks");
  const held = reason === undefined ? rules : undefined;
  const jails = await Jails.open(host);
  return {
    host,
    agent,
    lock,
    datasets,
    jails,
    helpers: new JexecHelpers({ host, program: join(settings.agentInside, AGENT), log }),
    templates: new Templates(settings),
    leases,
    networks:
      network.kind === "none"
        ? undefined
        : new VnetNetworks({
            host,
            settings: network,
            addresses: new AddressPool({ range: network.range, leases }),
            digest: owner,
          }),
    rules: held,
    volumes: new VolumeDatasets({
      host,
      datasets,
      directory: join(directory, "volumes"),
      owner: settings.volumeOwner,
    }),
    images: new ImageDatasets({
      host,
      datasets,
      jails: new ImageJails(jails, held, settings),
      settings,
      directory: join(directory, "images"),
    }),
    usage: new UsageSampler({ datasets, rules: held, names }),
    limits: enforcedLimits(reason),
    programs: await keepAgent(directory, agent),
  };
}

/** Replaces the program by a rename: running jails keep the file that they were started from. */
async function keepAgent(directory: string, agent: string): Promise<string> {
  const program = join(directory, "programs", AGENT);
  await copyFile(agent, `${program}.new`);
  await rename(`${program}.new`, program);
  return dirname(program);
}

export function installationOf(directory: string): string {
  return digestOf(directory).slice(0, OWNER_DIGITS);
}

/**
 * Takes a lock that ends with `close`, or with the process, even after a crash.
 * @returns undefined while somebody else has it.
 */
function takeLock(path: string): DatabaseSync | undefined {
  // Used only for its lock: Node has none for files.
  const lock = new DatabaseSync(path, { timeout: 0 });
  try {
    lock.exec("BEGIN EXCLUSIVE");
    return lock;
  } catch (error) {
    lock.close();
    if ((error as { readonly errcode?: number }).errcode !== SQLITE_BUSY) throw error;
    return undefined;
  }
}
