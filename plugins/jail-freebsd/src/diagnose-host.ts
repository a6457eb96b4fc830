import type { Examination, Finding } from "@coppice/core";
import { type EnforcedLimit, isExecutable, type HostProblem } from "./host/host-facts.js";
import { missingSnapshot } from "./host-problems.js";
import type { JailBackend } from "./jail-backend.js";
import { serviceProblems, trialProblems } from "./host-trials.js";
import type { JailSettings } from "./jail-freebsd-config.js";
import type { Opened } from "./open-host.js";

const BASE = "base";
const CODE_INTERPRETER = "code-interpreter-v1";
const SEE_JAILS = "security.bsd.see_jail_proc";
const RESTARTS = "daemon(8) begins a server again whose sandboxes live on";
const REBOOT = "put kern.racct.enable=1 into /boot/loader.conf (config/freebsd/loader.conf) and reboot";
const UNPROVEN: Finding = {
  severity: "warn",
  message: "no release of this backend has run on FreeBSD: its tests run over stand-ins",
  fix: "scripts/freebsd-smoke.sh <pool> proves most of it on this host, docs/freebsd.md#tested-and-untested has the rest",
};
const TRIED: Finding = { severity: "ok", message: "the commands that make a sandbox work" };
const UNTRIED: Finding = {
  severity: "warn",
  message: `the commands that make a sandbox were not tried: there is no snapshot of ${BASE} to clone`,
  fix: "make one by hand, as docs/freebsd.md#templates says, or create a sandbox when a recipe has built it",
};

/** Packages that set-up and upgrades take. Node, which runs this, need not be one. */
const PACKAGES = { "git": /^git(-|$)/, "npm-node24": /^npm(-|$)/ };

/** Returns the findings of `coppice doctor` for this host: problems with their fixes, then the options it offers. */
export async function diagnoseHost(
  settings: JailSettings,
  backend: JailBackend,
  { plugins }: Examination,
): Promise<readonly Finding[]> {
  const found = asFindings(await backend.problems());
  if (found.some(({ severity }) => severity === "fail")) return found;
  const opened = await backend.look();
  const { datasets, templates } = opened;
  const isTried = await datasets.hasSnapshot(templates.snapshotOf(BASE));
  const problems = isTried ? asFindings(await trialProblems(opened, settings)) : [UNTRIED];
  if (problems.some(({ severity }) => severity === "fail")) return problems;
  const service = asFindings(await serviceProblems(opened, settings));
  return [
    UNPROVEN,
    ...found,
    ...(isTried ? [TRIED] : []),
    ...problems,
    ...(service.length > 0 ? service : [{ severity: "ok", message: RESTARTS } as const]),
    ...opened.limits.map(describeLimit),
    await describeSight(opened),
    await describePackages(opened),
    describeNetwork(settings),
    ...(plugins.has("templates") ? await describeUnpacker(settings) : []),
    ...(plugins.has("jupyter") ? [await describeCodeInterpreter(opened)] : []),
  ];
}

function asFindings(problems: readonly HostProblem[]): readonly Finding[] {
  return problems.map((problem) => ({ severity: "fail", ...problem }));
}

function describeLimit({ name, isEnforced, how }: EnforcedLimit): Finding {
  const message = `${name}: ${how}`;
  return isEnforced ? { severity: "ok", message } : { severity: "warn", message, fix: REBOOT };
}

async function describeSight({ host }: Opened): Promise<Finding> {
  const { stdout } = await host.try("sysctl", ["-n", SEE_JAILS]);
  if (stdout.trim() === "0") return { severity: "ok", message: "users of the host do not see into jails" };
  const fix = `sysctl ${SEE_JAILS}=0, and put it into /etc/sysctl.conf`;
  return { severity: "warn", message: "users of the host see the processes of sandboxes", fix };
}

/** Without pkg(8) no template is built. With -N it does not begin to install itself. */
async function describePackages({ host }: Opened): Promise<Finding> {
  const { code, stderr } = await host.try("pkg", ["-N"]);
  const names = code === 0 ? (await host.run("pkg", ["query", "%n"])).split("\n") : [];
  const missing = Object.entries(PACKAGES).flatMap(([name, pattern]) =>
    names.some((each) => pattern.test(each)) ? [] : [name],
  );
  if (missing.length === 0) return { severity: "ok", message: "pkg(8) works, and set-up has its packages" };
  const message =
    code === 0 ? `packages of the host are missing: ${missing.join(", ")}` : `pkg -N: ${stderr.trim()}`;
  return { severity: "warn", message, fix: `env ASSUME_ALWAYS_YES=yes pkg install ${missing.join(" ")}` };
}

function describeNetwork({ network }: JailSettings): Finding {
  if (network.kind === "none")
    return { severity: "ok", message: "no sandbox reaches the internet (network.kind: none)" };
  const message = `sandboxes may reach the internet, from ${network.range} by ${network.bridge}`;
  return { severity: "ok", message };
}

/** Only when it is missing: sandboxes of other templates do without. */
async function describeUnpacker({ programs }: JailSettings): Promise<readonly Finding[]> {
  if (await isExecutable(programs.umoci)) return [];
  const message = `images of templates cannot be unpacked: there is no program ${programs.umoci}`;
  const fix = "pkg install umoci, as docs/freebsd.md says, or set jail-freebsd.programs.umoci";
  return [{ severity: "warn", message, fix }];
}

async function describeCodeInterpreter({ datasets, templates }: Opened): Promise<Finding> {
  const snapshot = templates.snapshotOf(CODE_INTERPRETER);
  if (await datasets.hasSnapshot(snapshot))
    return { severity: "ok", message: `template ${CODE_INTERPRETER} is ${snapshot}` };
  return { severity: "warn", ...missingSnapshot(snapshot, CODE_INTERPRETER) };
}
