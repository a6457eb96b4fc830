import { createHash } from "node:crypto";
import { mkdir, readdir } from "node:fs/promises";
import { isAbsolute, join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { agentBinary } from "@coppice/agent";
import { SandboxError, messageOf, type Logger } from "@coppice/core";
import { type Init, Launcher } from "./launcher/launcher.js";
import { launcherBinary } from "./launcher/host-programs.js";
import { tryOverlay } from "./launcher/try-overlay.js";
import { type UserNamespace, findUserNamespace, templateOwners } from "./launcher/user-namespace.js";
import { ControlGroups } from "./limits/control-groups.js";
import { type EnforcedLimit, enforcedLimits } from "./limits/enforced-limits.js";
import { IDS_OF_SANDBOX, IdRanges, ProjectQuotas } from "./limits/given-numbers.js";
import type { LinuxNamespacesSettings } from "./linux-namespaces-config.js";
import { Egress, interfacePrefix } from "./network/egress.js";
import { claimRange } from "./network/egress-range.js";
import { Uplink, findUplinkProgram } from "./network/uplink.js";
import { type PreparedTemplate, type SandboxFacts, isAlive, readProcess } from "./launcher/sandbox-record.js";
import { ImageStore } from "./storage/image-store.js";
import { SnapshotStore } from "./storage/snapshot-store.js";
import { VolumeStore } from "./storage/volume-store.js";
import { Templates } from "./templates/templates.js";
import { REASONS } from "./reasons.js";

export interface Opened {
  readonly launcher: Launcher;
  readonly groups: ControlGroups;
  readonly templates: Templates;
  readonly snapshots: SnapshotStore;
  readonly images: ImageStore;
  readonly volumes: VolumeStore;
  readonly agent: string;
  readonly egress: Egress | undefined;
  /** True when writable layers must be in memory. */
  readonly keepsLayersInMemory: boolean;
  readonly quotas: ProjectQuotas | undefined;
  readonly users: UserNamespace | undefined;
  readonly ids: IdRanges | undefined;
  /** Reason why sandboxes of a root server have the host's ids; undefined where they have separate ones. */
  readonly idsMissing: string | undefined;
  readonly limits: readonly EnforcedLimit[];
}

const LOCK_ATTEMPTS = 50;
const LOCK_PAUSE_MS = 20;

interface HostOptions {
  readonly settings: LinuxNamespacesSettings;
  readonly log: Logger;
  readonly directory: string;
  readonly sandboxes: () => Promise<readonly SandboxFacts[]>;
}

/** Short name of an installation for its resources on the host: 8 hex digits of a digest of its directory. */
export function installationDigest(directory: string): string {
  return createHash("sha256").update(resolve(directory)).digest("hex").slice(0, 8);
}

export async function openHost(options: HostOptions): Promise<Opened> {
  const { directory, log, sandboxes, settings } = options;
  const agent = agentBinary();
  if (agent === undefined || !isAbsolute(agent)) throw new Error("the agent has not been built");
  await mkdir(join(directory, "sandboxes"), { recursive: true, mode: 0o700 }).catch((error: unknown) => {
    throw new SandboxError(REASONS.host_setting_invalid, `directory cannot be used: ${messageOf(error)}`, {
      cause: error,
    });
  });
  const users = await findUserNamespace();
  const binary = await launcherBinary(join(directory, "programs"));
  const launcher = new Launcher(binary, users, await living(directory));
  let egress: Egress | undefined;
  try {
    await lock(launcher, directory);
    await spreadSandboxes(launcher, directory);
    const digest = installationDigest(directory);
    const groups = await ControlGroups.find(`coppice-${digest}`);
    egress = await findEgress(options, launcher, digest);
    const templates = new Templates({ parent: join(directory, "templates"), settings, launcher, users });
    await templates.prepare();
    const snapshots = new SnapshotStore({
      directory: join(directory, "snapshots"),
      launcher,
      chainsInUse: async () => (await sandboxes()).map((facts) => facts.snapshots ?? []),
    });
    await snapshots.open();
    const keepsLayersInMemory = await mustKeepLayersInMemory(options, launcher, users);
    const quotas = keepsLayersInMemory ? undefined : await ProjectQuotas.find(launcher, directory);
    const volumes = new VolumeStore({
      directory: join(directory, "volumes"),
      launcher,
      quotas,
      owners: templateOwners(launcher, users),
      scanEntries: settings.diskScanEntries,
    });
    await volumes.open();
    const { ids, idsMissing } = await findIds(options, launcher, {
      digest,
      keepsLayersInMemory,
      template: await templates.get("base"),
    });
    const images = new ImageStore({
      directory: join(directory, "images"),
      packing: join(directory, "packing"),
      launcher,
      users,
      ids,
      quotas,
      chainsInUse: async () => [
        ...(await sandboxes()).map((facts) => facts.images ?? []),
        ...(await snapshots.all()).map((facts) => facts.images),
      ],
    });
    await images.open();
    const limits = enforcedLimits({
      controllers: groups.found,
      countsProcesses: users !== undefined || ids !== undefined,
      keepsLayersInMemory,
      hasProjectQuotas: quotas !== undefined,
      endsPastDisk: settings.diskLimit === "end",
    });
    const fields = {
      limits: Object.fromEntries(limits.map(({ name, how }) => [name, how])),
      egress: egress?.description ?? "none",
      hasAccounts: users?.hasAccounts ?? true,
      hasOwnIds: ids !== undefined,
      keepsLayersInMemory,
    };
    log.info(fields, "linux-namespaces is ready");
    const missing = limits.filter(({ reach }) => reach === "none").map(({ name }) => name);
    if (missing.length > 0)
      log.warn({ missing }, "limits of sandboxes are not enforced: this host denies the server the means");
    return {
      launcher,
      groups,
      templates,
      snapshots,
      images,
      volumes,
      agent,
      egress,
      keepsLayersInMemory,
      quotas,
      users,
      ids,
      idsMissing,
      limits,
    };
  } catch (error) {
    if (egress !== undefined) await closeEgress(directory, egress);
    await launcher.close();
    throw error;
  }
}

/** First processes that earlier servers left; the uplink's precedes those of sandboxes. */
async function living(directory: string): Promise<readonly Init[]> {
  const sandboxes = await readdir(join(directory, "sandboxes"));
  const directories = ["uplink", ...sandboxes.map((id) => join("sandboxes", id))];
  const found: Init[] = [];
  for (const each of directories) {
    const init = await readProcess(join(directory, each, "init"));
    if (init !== undefined && (await isAlive(init))) found.push(init);
  }
  return found;
}

/** Closes egress, unless remaining sandboxes need its rules. */
export async function closeEgress(directory: string, egress: Egress): Promise<void> {
  // Counts sandboxes of an earlier server that were never recovered, too: only the rules restrict them.
  const left = await readdir(join(directory, "sandboxes"));
  await egress.close(left.length > 0);
}

async function findEgress(
  options: HostOptions,
  launcher: Launcher,
  digest: string,
): Promise<Egress | undefined> {
  const { log, settings } = options;
  if (settings.egress === "none") return undefined;
  try {
    return await openEgress(options, launcher, digest);
  } catch (error) {
    if (settings.egress === "nat") throw error;
    log.warn({ reason: messageOf(error) }, "sandboxes have no network: this host cannot give them one");
    return undefined;
  }
}

async function openEgress(
  { directory, log, settings }: HostOptions,
  launcher: Launcher,
  digest: string,
): Promise<Egress> {
  const {
    egressBlocked: blocked,
    egressConnections: connections,
    egressProgram,
    egressRange: range,
  } = settings;
  const uplinkOptions = { launcher, directory: join(directory, "uplink"), range };
  const uplink = needsUplink(settings)
    ? new Uplink({ ...uplinkOptions, program: await findUplinkProgram(egressProgram) })
    : undefined;
  const claim = uplink === undefined ? await claimRange(range, interfacePrefix(digest)) : undefined;
  const opened = new Egress({
    launcher,
    settings: { range, blocked, connections },
    digest,
    uplink,
    claim,
    log,
  });
  try {
    await opened.open();
    return opened;
  } catch (error) {
    await closeEgress(directory, opened);
    throw error;
  }
}

async function mustKeepLayersInMemory(
  { directory, log, settings: { layers } }: HostOptions,
  launcher: Launcher,
  users: UserNamespace | undefined,
): Promise<boolean> {
  const options = users === undefined ? "" : ",userxattr";
  const onDisk = layers === "memory" ? "not wanted" : await tryOverlay({ launcher, directory }, { options });
  if (onDisk === undefined) return false;
  if (layers === "disk") throw new Error(`no overlay on ${directory}: ${onDisk}`);
  const inMemory = await tryOverlay({ launcher, directory }, { isInMemory: true, options });
  if (inMemory !== undefined) throw new Error(`no overlay file system: ${inMemory}`);
  if (layers === "auto") {
    const fields = { directory, reason: onDisk };
    log.warn(fields, "sandboxes store files in memory: no overlay on this file system");
  }
  return true;
}

/** Tests whether files can be id-mapped for sandboxes with separate ids. */
async function findIds(
  { directory, log, settings: { ids: settings } }: HostOptions,
  launcher: Launcher,
  given: {
    readonly digest: string;
    readonly keepsLayersInMemory: boolean;
    readonly template: PreparedTemplate;
  },
): Promise<Pick<Opened, "ids" | "idsMissing">> {
  if (process.geteuid?.() !== 0) return { ids: undefined, idsMissing: undefined };
  if (settings.count < IDS_OF_SANDBOX) return { ids: undefined, idsMissing: "linux-namespaces.ids has none" };
  const ids = new IdRanges(settings, Number.parseInt(given.digest.slice(0, 6), 16));
  const firstId = ids.take();
  const sources = given.template.binds.map(({ source }) => source);
  const isInMemory = given.keepsLayersInMemory;
  const idsMissing = await tryOverlay({ launcher, directory }, { firstId, isInMemory, sources });
  ids.release(firstId);
  if (idsMissing === undefined) return { ids, idsMissing };
  log.warn({ reason: idsMissing }, "sandboxes have the user ids of the host");
  return { ids: undefined, idsMissing };
}

/** True when the server is not root and gives its sandboxes network access, which needs an uplink program. */
export function needsUplink({ egress }: LinuxNamespacesSettings): boolean {
  return process.geteuid?.() !== 0 && egress !== "none";
}

/**
 * Lets ext4 keep sandboxes in different parts of the disk. It does not use the number of a removed file again for a
 * minute, and looks through all such numbers of a part for each new one: where hundreds of sandboxes had come and gone,
 * another took two and a half times as long. Other file systems have nothing like it.
 */
async function spreadSandboxes(launcher: Launcher, directory: string): Promise<void> {
  await launcher.disk("spread", join(directory, "sandboxes")).catch(() => undefined);
}

/** Locks the directory; retries for a moment while another server ends. */
async function lock(launcher: Launcher, directory: string): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    try {
      await launcher.lock(directory);
      return;
    } catch (error) {
      if (!messageOf(error).includes("another server") || attempt === LOCK_ATTEMPTS) {
        throw new SandboxError(
          REASONS.directory_in_use,
          `directory ${directory} cannot be used: ${messageOf(error)}`,
          { cause: error },
        );
      }
      await sleep(LOCK_PAUSE_MS);
    }
  }
}
