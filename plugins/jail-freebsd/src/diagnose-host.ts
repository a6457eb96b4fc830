import { type Examination, type Finding, messageOf } from "@coppice/core";
import type { EnforcedLimit } from "./host/enforced-limits.js";
import type { JailBackend } from "./jail-backend.js";
import type { JailSettings } from "./jail-freebsd-config.js";

const CODE_INTERPRETER = "code-interpreter-v1";
const SEE_JAILS = "security.bsd.see_jail_proc";
const REBOOT = "put kern.racct.enable=1 into /boot/loader.conf (config/freebsd/loader.conf) and reboot";

/** Returns the findings of `coppice doctor` for this host: problems with their fixes, then the options it offers. */
export async function diagnoseHost(
  settings: JailSettings,
  backend: JailBackend,
  { plugins }: Examination,
): Promise<readonly Finding[]> {
  const found = await backend.problems();
  const problems = (found.length > 0 ? found : await backend.trialProblems()).map(
    (problem) => ({ severity: "fail", ...problem }) as const,
  );
  if (problems.some(({ severity }) => severity === "fail")) return problems;
  return [
    { severity: "ok", message: "the commands that make a sandbox work" },
    ...problems,
    ...((await backend.enforcedLimits()) ?? []).map(describeLimit),
    await describeSight(backend),
    describeNetwork(settings),
    describeSignatures(settings),
    ...(plugins.has("jupyter") ? [await describeCodeInterpreter(backend)] : []),
  ];
}

function describeLimit({ name, isEnforced, how }: EnforcedLimit): Finding {
  const message = `${name}: ${how}`;
  return isEnforced ? { severity: "ok", message } : { severity: "warn", message, fix: REBOOT };
}

async function describeSight(backend: JailBackend): Promise<Finding> {
  if ((await backend.sysctl(SEE_JAILS)) === "0") {
    return { severity: "ok", message: "users of the host do not see into jails" };
  }
  const fix = `sysctl ${SEE_JAILS}=0, and put it into /etc/sysctl.conf`;
  return { severity: "warn", message: "users of the host see the processes of sandboxes", fix };
}

function describeNetwork({ network }: JailSettings): Finding {
  if (network.kind === "none") {
    return { severity: "ok", message: "no sandbox reaches the internet (network.kind: none)" };
  }
  const link = network.kind === "vnet" ? network.bridge : `${network.loopback} and ${network.outside}`;
  const message = `sandboxes may reach the internet, from ${network.range} by ${link}`;
  return { severity: "ok", message };
}

function describeSignatures({ templateSignatures }: JailSettings): Finding {
  const message =
    templateSignatures === undefined ? "templates need not be signed" : "templates have to be signed";
  return { severity: "ok", message };
}

async function describeCodeInterpreter(backend: JailBackend): Promise<Finding> {
  try {
    const snapshot = await backend.templateSnapshot(CODE_INTERPRETER);
    return { severity: "ok", message: `template ${CODE_INTERPRETER} is ${snapshot}` };
  } catch (error) {
    const fix = "coppice template build <config.yaml> config/freebsd/code-interpreter-v1.yaml";
    return { severity: "fail", message: messageOf(error), fix };
  }
}
