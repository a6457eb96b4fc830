import { chmod, mkdir, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { JailSettings } from "@coppice/plugin-jail-freebsd";
import type { FreebsdHost } from "./freebsd-host.js";

/**
 * How a host fails. `dead`: from one command on, every command fails without an effect, as if the server had ended
 * there. `once`: one command fails so. `late`: one command has its effect and fails. `hang`: one command has no
 * effect and does not end.
 */
export type Fault = "dead" | "once" | "late" | "hang";

/** Programs of a FreeBSD host that fail at chosen commands. */
export interface FailingPrograms {
  /** Settings of a backend that uses them. */
  readonly settings: JailSettings;
  /**
   * Arms a fault at the command of that number, counted from 0 from now on. With `only` no other programs are counted;
   * after a `dead` fault all fail.
   */
  arm(fault: Fault, number: number, only?: string): Promise<void>;
  /**
   * Disarms the fault.
   * @returns true when a command has failed
   */
  heal(): Promise<boolean>;
}

const HAS_FAILED = "over";
const RUN_INSIDE: ReadonlySet<string> = new Set(["umoci", "sort", "tar"]);

export async function makeFailingPrograms(host: FreebsdHost): Promise<FailingPrograms> {
  const { directory, settings } = host;
  const bin = join(directory, "failing");
  // Remaining count and the fault.
  const armed = join(directory, "armed");
  await mkdir(bin);
  const programs: Record<string, string> = {};
  for (const [name, path] of Object.entries(settings.programs)) {
    // It runs only in a jail, which has no armed fault.
    if (RUN_INSIDE.has(name)) continue;
    programs[name] = join(bin, name);
    const script = `#!/bin/sh
[ -e ${armed} ] || exec ${path} "$@"
# Two may be run at a time.
exec 9>> ${armed}.lock
/usr/bin/flock 9
# All may have been healed meanwhile.
[ -e ${armed} ] || exec ${path} "$@"
IFS=: read -r left fault only state < ${armed}
if [ -z "$state" ] && [ -n "$only" ] && [ "$only" != ${name} ]; then
  :
elif [ -n "$left" ]; then
  echo "\${left#x}:$fault:$only:" > ${armed}
elif [ "$fault" = dead ] || [ -z "$state" ]; then
  echo ":$fault:$only:${HAS_FAILED}" > ${armed}
  exec 9>&-
  [ "$fault" = late ] && ${path} "$@"
  [ "$fault" = hang ] && exec /bin/sleep 600
  echo "${name}: injected" >&2
  exit 1
fi
exec 9>&-
exec ${path} "$@"
`;
    await writeFile(join(bin, name), script);
    await chmod(join(bin, name), 0o755);
  }
  return {
    settings: {
      ...settings,
      programs: { ...settings.programs, ...programs },
      // Those that run in jails, too, are scripts of this shell.
      unpackerLibraries: [...settings.unpackerLibraries, "/bin"],
    },
    arm: async (fault, number, only = "") => {
      // By a rename: a running program would read half a line as the fault.
      await writeFile(`${armed}.new`, `${"x".repeat(number)}:${fault}:${only}:\n`);
      await rename(`${armed}.new`, armed);
    },
    heal: async () => {
      // With the lock: a running program that writes the count back would arm the next command.
      const script = 'cat "$0"; rm "$0"';
      const state = await host.run("/usr/bin/flock", `${armed}.lock`, "/bin/sh", "-c", script, armed);
      return state.trim().endsWith(`:${HAS_FAILED}`);
    },
  };
}
