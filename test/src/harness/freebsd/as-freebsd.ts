import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";

/** Makes a Node process take this system for FreeBSD, on a processor with the fewest tools. */
const PRELOAD = `Object.defineProperty(process, "platform", { value: "freebsd" });
Object.defineProperty(process, "arch", { value: "arm64" });\n`;

/** Stand-ins for programs of FreeBSD whose namesakes differ, or are not there. */
const PROGRAMS = {
  // Everything after an equals sign is the header of that column: bin/ps/keyword.c (parsefmt). With -e it shows
  // environments, as that of Linux does without the dash.
  ps: `for word; do
  shift
  case $word in
  *=*) header=\${word#*=}; [ -z "$header" ] || echo "$header"; word=\${word%%=*}= ;;
  -axwwe) word=axwwe ;;
  esac
  set -- "$@" "$word"
done
exec /bin/ps "$@"`,
  // usr.bin/procstat/procstat_pwdx.c (procstat_pwdx).
  procstat: `[ "$*" = "-a pwdx" ] || { echo "usage: procstat -a pwdx" >&2; exit 64; }
# One process for all: tests look very often.
find /proc/[0-9]*/cwd -maxdepth 0 -printf '%h:  %l\\n' 2> /dev/null | cut -c 7-`,
};

/** What makes Node processes take this system for FreeBSD. */
export interface AsFreebsd {
  /** For Node's `--import`. */
  readonly preload: string;
  /** Variables under which it is so for a process and all that it starts. */
  readonly environment: Readonly<Record<string, string>>;
}

/** @param directory where files for it are made. */
export async function asFreebsd(directory: string): Promise<AsFreebsd> {
  const preload = join(directory, "as-freebsd.mjs");
  const bin = join(directory, "freebsd-bin");
  await writeFile(preload, PRELOAD);
  await mkdir(bin);
  for (const [name, script] of Object.entries(PROGRAMS)) {
    await writeFile(join(bin, name), `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  }
  return {
    preload,
    environment: { NODE_OPTIONS: `--import ${preload}`, PATH: `${bin}:${process.env["PATH"]}` },
  };
}
