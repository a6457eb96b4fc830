import { DEFAULT_PATH, exitText, type Sandbox, SandboxError } from "@coppice/core/backend";
import type { LogLevel } from "../model/build-record.js";
import { OutputLines } from "../model/output-lines.js";
import { runInGuest, runScript } from "../guest/guest-run.js";

export interface ProgramsOptions {
  readonly signal: AbortSignal;
  readonly print: (level: LogLevel, line: string) => void;
  /** False: nothing can be fetched. */
  readonly hasInternet: boolean;
  /** Variables of the proxies for the package manager. */
  readonly proxies: Readonly<Record<string, string>>;
  /** Most time for the package manager. */
  readonly timeoutMs: number;
}

interface Manager {
  /** Command lines, of which the last one gets the packages. */
  readonly commands: readonly (readonly [program: string, ...args: string[]])[];
  /** Names of packages that are not those of their programs. */
  readonly packages: Readonly<Record<string, string>>;
}

/** Programs that clients of sandboxes count on. `ca-certificates` stands for the certificates of authorities. */
const PROGRAMS = [
  "bash",
  "sudo",
  "curl",
  "git",
  "jq",
  "ip",
  "ping",
  "ps",
  "less",
  "tar",
  "find",
  "ca-certificates",
];

const DNF = { ip: "iproute", ping: "iputils", ps: "procps-ng", find: "findutils" };
const MANAGERS: Readonly<Record<string, Manager>> = {
  "apt-get": {
    commands: [
      ["apt-get", "update"],
      ["apt-get", "install", "-y", "--no-install-recommends"],
    ],
    packages: { ip: "iproute2", ping: "iputils-ping", ps: "procps", find: "findutils" },
  },
  "apk": {
    commands: [["apk", "add", "--no-cache"]],
    packages: { ip: "iproute2", ping: "iputils", ps: "procps", find: "findutils" },
  },
  "dnf": { commands: [["dnf", "install", "-y", "--setopt=install_weak_deps=False"]], packages: DNF },
  "microdnf": { commands: [["microdnf", "install", "-y"]], packages: DNF },
  "yum": { commands: [["yum", "install", "-y"]], packages: DNF },
  "pacman": {
    commands: [["pacman", "-Sy", "--noconfirm", "--needed"]],
    packages: { ip: "iproute2", ping: "iputils", ps: "procps-ng", find: "findutils" },
  },
  "pkg": { commands: [["pkg", "install", "-y"]], packages: { "ca-certificates": "ca_root_nss" } },
};

/** Prints `missing <program>` for each that is missing, and `manager <name>`. Parameters: managers, `--`, programs. */
const LOOK = `
manager=
while [ "$1" != -- ]; do
  [ -n "$manager" ] || ! command -v "$1" > /dev/null || manager=$1
  shift
done
shift
for program; do
  case $program in
  ca-certificates)
    [ -s /etc/ssl/certs/ca-certificates.crt ] || [ -s /etc/pki/tls/certs/ca-bundle.crt ] || [ -s /etc/ssl/cert.pem ]
    ;;
  # FreeBSD has ifconfig(8) instead.
  ip) command -v ip > /dev/null || [ "$(uname -s)" = FreeBSD ] ;;
  *) command -v "$program" > /dev/null ;;
  esac || echo "missing $program"
done
echo "manager $manager"
`;

/** Leaves what the last one of a package manager needs no more. Packages of FreeBSD are below /usr/local. */
const CLEAN = `
[ -e /bin/bash ] || [ ! -e /usr/local/bin/bash ] || ln -s /usr/local/bin/bash /bin/bash
rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb /var/cache/dnf /var/cache/yum /var/cache/pacman/pkg/* /var/cache/pkg/*
`;

/**
 * Installs programs that an image lacks by its own package manager. Where that is impossible, the log has a warning.
 * @returns false when there is no bash, without which nothing works.
 */
export async function installPrograms(sandbox: Sandbox, options: ProgramsOptions): Promise<boolean> {
  const { hasInternet, print, signal } = options;
  const before = await look(sandbox, signal);
  if (before.missing.length === 0) return true;
  const manager = before.manager === "" ? undefined : MANAGERS[before.manager];
  const list = before.missing.join(", ");
  if (manager === undefined) {
    print("warn", `This image has no ${list}, and no package manager to install it`);
  } else if (!hasInternet) {
    print("warn", `This image has no ${list}, and nothing can be installed without an internet connection`);
  } else {
    print("info", `Installing ${list} with ${before.manager}`);
    const failure = await install(sandbox, manager, before.missing, options);
    if (failure !== undefined)
      print("warn", `Not installed: ${(await look(sandbox, signal)).missing.join(", ")}: ${failure}`);
    await runScript(sandbox, CLEAN, { args: [], shell: "sh", signal });
  }
  return !(await look(sandbox, signal)).missing.includes("bash");
}

async function look(
  sandbox: Sandbox,
  signal: AbortSignal,
): Promise<{ readonly missing: readonly string[]; readonly manager: string }> {
  const args = [...Object.keys(MANAGERS), "--", ...PROGRAMS];
  const none = { missing: PROGRAMS, manager: "" };
  const looked = await runScript(sandbox, LOOK, { args, shell: "sh", signal }).catch((error: unknown) => {
    // An image without any accounts.
    if (error instanceof SandboxError && error.code === "unauthenticated") return undefined;
    throw error;
  });
  if (looked?.exit.code !== 0) return none;
  const { stdout } = looked;
  const lines = stdout.split("\n");
  const values = (kind: string): readonly string[] =>
    lines.filter((line) => line.startsWith(`${kind} `)).map((line) => line.slice(kind.length + 1));
  return {
    missing: values("missing").filter((name) => PROGRAMS.includes(name)),
    manager: values("manager")[0] ?? "",
  };
}

/** @returns the reason of a failure */
async function install(
  sandbox: Sandbox,
  { commands, packages }: Manager,
  missing: readonly string[],
  { print, proxies, signal, timeoutMs }: ProgramsOptions,
): Promise<string | undefined> {
  const late = AbortSignal.timeout(timeoutMs);
  let last = "";
  const lines = new OutputLines((stream, line) => {
    last = line;
    print("debug", `[${stream}]: ${line}`);
  });
  for (const [at, [program, ...args]] of commands.entries()) {
    const names = at === commands.length - 1 ? missing.map((name) => packages[name] ?? name) : [];
    const command = {
      path: program,
      args: [...args, ...names],
      env: {
        ...proxies,
        PATH: DEFAULT_PATH,
        HOME: "/root",
        DEBIAN_FRONTEND: "noninteractive",
        ASSUME_ALWAYS_YES: "yes",
      },
      cwd: "/",
      user: "root",
    };
    try {
      const exit = await runInGuest(sandbox, command, {
        signal: AbortSignal.any([signal, late]),
        onOutput: (output) => lines.push(output),
      });
      if (exit.code !== 0) return `${program}: ${exitText(exit)}${last && `: ${last}`}`;
    } catch (error) {
      signal.throwIfAborted();
      if (late.aborted) return `${program} took too long`;
      throw error;
    } finally {
      lines.end();
    }
  }
  return undefined;
}
