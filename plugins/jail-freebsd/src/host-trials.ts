import { mkdir, rm, rmdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { messageOf } from "@coppice/core";
import type { HostProblem } from "./host/host-problem.js";
import type { HostCall, HostProgram } from "./host/host.js";
import type { JailSettings } from "./jail-freebsd-config.js";
import type { Opened } from "./open-host.js";

/** A command that a host must be able to run for sandboxes. */
interface Trial {
  readonly program: HostProgram;
  readonly args: readonly string[];
  readonly call?: HostCall;
  readonly fix: string;
}

/** Jail, anchor and subject of rules that exist only during the trials. */
const NAME = "coppice-doctor";
const SEE_STEPS = "see the steps of docs/freebsd.md";

/**
 * Tries the commands that make a sandbox on this host, with a jail, an anchor and rules of their own, and removes these.
 * @returns the commands that failed, with what they said.
 */
export async function trialProblems(opened: Opened, settings: JailSettings): Promise<readonly HostProblem[]> {
  const { host, networks, rules } = opened;
  const root = join(settings.directory, NAME);
  const conf = `${root}.conf`;
  await mkdir(join(root, "dev"), { recursive: true });
  const devices = `mount.devfs; devfs_ruleset = ${settings.devfsRuleset};`;
  await writeFile(conf, `${NAME} { path = ${root}; persist; vnet; ${devices} stop.timeout = 0; }\n`);
  const jail = (flag: string): Trial => ({
    program: "jail",
    args: ["-q", "-f", conf, flag, NAME],
    fix: "a kernel with the option VIMAGE, as GENERIC has it",
  });
  const trials: readonly Trial[] = [
    ...(rules === undefined
      ? []
      : [
          {
            program: "rctl",
            args: ["-a", `jail:${NAME}:maxproc:deny=9`, `jail:${NAME}:memoryuse:deny=64M`],
            fix: "put kern.racct.enable=1 into /boot/loader.conf and reboot",
          } as const,
          { program: "rctl", args: ["-r", `jail:${NAME}`], fix: SEE_STEPS } as const,
        ]),
    ...(networks === undefined || settings.network.kind === "none"
      ? []
      : [
          {
            program: "pfctl",
            args: ["-q", "-a", `${settings.network.anchor}/${NAME}`, "-f", "-"],
            call: { input: "" },
            fix: "kldload pf, and pf_enable in rc.conf",
          } as const,
        ]),
    jail("-c"),
    { program: "ifconfig", args: ["-j", NAME, "lo0", "inet", "127.0.0.1/8", "up"], fix: SEE_STEPS },
    jail("-r"),
  ];
  const problems: HostProblem[] = [];
  for (const { program, args, call, fix } of trials) {
    const failure = await host.run(program, args, call).then(() => undefined, messageOf);
    if (failure !== undefined) problems.push({ message: `${program} ${args.join(" ")}: ${failure}`, fix });
  }
  if (problems.length > 0) await host.try("jail", jail("-r").args);
  await rm(conf);
  // Not a recursive removal: a devfs that could not be unmounted stays whole.
  await rmdir(join(root, "dev")).then(
    () => rmdir(root),
    () => undefined,
  );
  return problems;
}
