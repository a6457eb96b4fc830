import { chmod, copyFile, mkdir, rename } from "node:fs/promises";
import { dirname, join } from "node:path";
import { agentBinary } from "@coppice/agent";
import type { AddressLeases, Logger, NetworkLeases } from "@coppice/core";
import { AddressPool } from "./network/address-pool.js";
import { AliasNetworks } from "./network/alias-networks.js";
import { BuiltTemplates } from "./templates/built-templates.js";
import { Datasets } from "./zfs/datasets.js";
import { type EnforcedLimit, enforcedLimits } from "./host/enforced-limits.js";
import { Host } from "./host/host.js";
import { installationOf } from "./host/installation.js";
import type { JailSettings } from "./jail-freebsd-config.js";
import { JexecHelpers } from "./jails/jexec-helpers.js";
import { Jails } from "./jails/jails.js";
import { ResourceRules } from "./jails/resource-rules.js";
import type { SandboxNetworks } from "./network/sandbox-networks.js";
import { TemplateSignatures } from "./templates/template-signatures.js";
import { Templates } from "./templates/templates.js";
import { UsageSampler } from "./zfs/usage-sampler.js";
import { VnetNetworks } from "./network/vnet-networks.js";
import { VolumeDatasets } from "./zfs/volume-datasets.js";

/** The parts of a backend that was opened. */
export interface Opened {
  readonly host: Host;
  readonly datasets: Datasets;
  readonly jails: Jails;
  readonly helpers: JexecHelpers;
  readonly templates: Templates;
  readonly volumes: VolumeDatasets;
  /** Undefined where templates need not be signed. */
  readonly signatures: TemplateSignatures | undefined;
  /** Those of this installation's sandboxes. */
  readonly leases: NetworkLeases;
  /** Undefined where sandboxes have lo0 alone. */
  readonly networks: SandboxNetworks | undefined;
  /** Undefined where the kernel counts nothing. */
  readonly rules: ResourceRules | undefined;
  readonly usage: UsageSampler;
  readonly limits: readonly EnforcedLimit[];
  /** Directory on the host with the agent's program alone, which is mounted in every jail. */
  readonly programs: string;
}

export interface OpenHostOptions {
  readonly settings: JailSettings;
  readonly leases: AddressLeases;
  readonly log: Logger;
  /** Names of all sandboxes that there are. */
  readonly names: () => readonly string[];
}

/** Name of the agent's program, in the directory that is mounted in every jail. */
export const AGENT = "coppice-agent";
/** sun_path of FreeBSD without its NUL, the shortest there is. */
const LONGEST_SOCKET_PATH = 103;
const LONGEST_ID = 64;

/** @throws Error that says why this host cannot be used */
export async function openHost(options: OpenHostOptions): Promise<Opened> {
  const { leases: allLeases, log, names, settings } = options;
  const { dataset, directory, hostCommandTimeout, programs, templateSignatures } = settings;
  const agent = settings.agent ?? agentBinary();
  if (agent === undefined)
    throw new Error("the agent has not been built: install a C compiler and run set-up");
  const longest = join(directory, "sockets", "x".repeat(LONGEST_ID));
  if (Buffer.byteLength(longest) > LONGEST_SOCKET_PATH) throw new Error(`directory ${directory} is too long`);
  for (const name of ["conf", "roots", "sockets", "helpers", "programs", "volumes"]) {
    // Root of a sandbox makes setuid files that no user of the host may reach.
    await mkdir(join(directory, name), { recursive: true, mode: 0o700 });
    // It may have been there.
    await chmod(join(directory, name), 0o700);
  }
  const host = new Host({
    programs,
    agent,
    socket: join(directory, "host.sock"),
    timeoutMs: hostCommandTimeout,
    log,
  });
  const owner = installationOf(directory);
  const leases = allLeases.of(`jail-freebsd-${owner}`);
  const datasets = new Datasets(host, { parent: dataset, owner });
  const rules = new ResourceRules(host, settings.limits);
  const reason = await rules.reasonAgainst();
  if (reason !== undefined) log.warn({ reason }, "sandboxes are held to no limits but those of their disks");
  const held = reason === undefined ? rules : undefined;
  return {
    host,
    datasets,
    jails: await Jails.open(host),
    helpers: new JexecHelpers({
      host,
      program: join(settings.agentInside, AGENT),
      log,
    }),
    templates: new Templates(settings.templates, {
      parent: dataset,
      built: new BuiltTemplates(host, { parent: dataset, builder: owner }),
    }),
    signatures: templateSignatures && new TemplateSignatures(host, templateSignatures),
    leases,
    networks: networksOf({ host, leases, network: settings.network, digest: owner }),
    rules: held,
    volumes: new VolumeDatasets({
      host,
      datasets,
      directory: join(directory, "volumes"),
      owner: settings.volumeOwner,
    }),
    usage: new UsageSampler({
      datasets,
      rules: held,
      names,
      maximumAgeMs: settings.usageMaximumAge,
    }),
    limits: enforcedLimits(reason),
    programs: await keepAgent(directory, agent),
  };
}

function networksOf({
  digest,
  host,
  leases,
  network: settings,
}: {
  readonly host: Host;
  readonly leases: NetworkLeases;
  readonly network: JailSettings["network"];
  readonly digest: string;
}): SandboxNetworks | undefined {
  if (settings.kind === "none") return undefined;
  const addresses = new AddressPool({ range: settings.range, leases });
  return settings.kind === "vnet"
    ? new VnetNetworks({ host, settings, addresses, digest })
    : new AliasNetworks({ host, settings, addresses });
}

/** Jails that run keep the file that they were started from: it is replaced, never written to. */
async function keepAgent(directory: string, agent: string): Promise<string> {
  const program = join(directory, "programs", AGENT);
  await copyFile(agent, `${program}.new`);
  await rename(`${program}.new`, program);
  return dirname(program);
}
