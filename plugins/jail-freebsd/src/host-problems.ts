import { realpath } from "node:fs/promises";
import type { Host } from "./host/host.js";
import { isExecutable, type HostProblem } from "./host/host-facts.js";
import type { JailSettings } from "./jail-freebsd-config.js";
import type { Opened } from "./open-host.js";

const BASE = "base";
const PROGRAMS_OF_NETWORK = { none: [], vnet: ["pfctl", "route", "arp"] } as const;

export async function hostProblems(
  settings: JailSettings,
  { datasets, host, jails, networks, templates }: Opened,
): Promise<readonly HostProblem[]> {
  const problems: HostProblem[] = [];
  if (process.getuid?.() !== 0) problems.push({ message: "the server is not root", fix: "run it as root" });
  const dataset = await host.try("zfs", ["get", "-H", "-o", "value", "type", datasets.parent]);
  if (dataset.code !== 0) {
    const fix = `zfs create -p ${datasets.parent}, or set jail-freebsd.dataset`;
    problems.push({ message: `dataset ${datasets.parent}: ${dataset.stderr.trim()}`, fix });
  } else {
    const snapshot = templates.snapshotOf(BASE);
    // A recipe's template is built while the server runs.
    if (!(await datasets.hasSnapshot(snapshot))) problems.push(missingSnapshot(snapshot, BASE));
  }
  await jails.names();
  const directory = await realpath(settings.directory);
  // Mounts are listed by their real paths.
  if (directory !== settings.directory) {
    const message = `directory ${settings.directory} is ${directory}, by a symbolic link`;
    problems.push({ message, fix: `set jail-freebsd.directory to ${directory}` });
  }
  problems.push(...(await devfsProblems(host, settings)), ...((await networks?.problems()) ?? []));
  return problems;
}

/** A template that sandboxes are cloned from where no recipe has built it. */
export function missingSnapshot(snapshot: string, template: string): HostProblem {
  const message = `there is no snapshot ${snapshot}: without a recipe that builds it, no sandbox has the template ${template}`;
  return { severity: "warn", message, fix: "docs/freebsd.md#templates, by a recipe or by hand" };
}

/** Returns the missing programs that sandboxes need. Those that only build templates are left out. */
export async function missingPrograms({ network, programs }: JailSettings): Promise<readonly HostProblem[]> {
  const needed = [
    ...([
      "zfs",
      "jail",
      "jexec",
      "jls",
      "ifconfig",
      "pkill",
      "ps",
      "mount",
      "umount",
      "devfs",
      "sysctl",
      "rctl",
    ] as const),
    ...PROGRAMS_OF_NETWORK[network.kind],
  ];
  const problems: HostProblem[] = [];
  for (const name of needed) {
    if (await isExecutable(programs[name])) continue;
    const fix = `set jail-freebsd.programs.${name}`;
    problems.push({ message: `there is no program ${programs[name]}`, fix });
  }
  return problems;
}

/** Returns the problems by which a new sandbox would reach devices or networks of the host that it must not reach. */
export async function hostGaps(
  { host, networks }: Opened,
  settings: JailSettings,
): Promise<readonly HostProblem[]> {
  return [...(await devfsProblems(host, settings)), ...((await networks?.gaps()) ?? [])];
}

/** Without a ruleset, /dev of a sandbox would show every device of the host. */
async function devfsProblems(host: Host, { devfsRuleset }: JailSettings): Promise<readonly HostProblem[]> {
  const { stdout } = await host.try("devfs", ["rule", "-s", String(devfsRuleset), "show"]);
  if (/^\d+ hide$/m.test(stdout) || /^\d+ include \d+$/m.test(stdout)) return [];
  const message = `devfs has no ruleset ${devfsRuleset} that hides what sandboxes must not see`;
  return [{ message, fix: "take over config/freebsd/devfs.rules, then service devfs restart" }];
}
