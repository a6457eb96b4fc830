import { mkdir, readFile, constants } from "node:fs/promises";
import { join, basename } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { agentBinary } from "@coppice/agent";
import type { Init, Launcher } from "../launcher/launcher.js";
import { isAlive, readProcess } from "../launcher/sandbox-record.js";
import { canAccess, findHostProgram } from "../launcher/host-programs.js";

interface UplinkOptions {
  readonly launcher: Launcher;
  readonly program: UplinkProgram;
  readonly directory: string;
  /** Private range, whose last 256 addresses it uses: `10.213.0.0/16`. */
  readonly range: string;
}

const INTERFACE = "uplink";
const START_TIMEOUT_MS = 5_000;
const LOOK_AGAIN_MS = 10;
const LOG_LINES = 3;

/**
 * Network of the sandboxes of a server that is not root: a network namespace in which it is root, and a program that
 * relays outgoing traffic. Both outlive the server, and the next one adopts them.
 */
export class Uplink {
  readonly #options: UplinkOptions;
  #holder: Init | undefined;
  #isNew = false;

  constructor(options: UplinkOptions) {
    this.#options = options;
  }

  /** True when connections of an earlier server are gone. */
  get isNew(): boolean {
    return this.#isNew;
  }

  get description(): string {
    return `${this.#options.program.path} and nftables, in a network namespace of this user`;
  }

  /** Adopts the parts that an earlier server left, and creates the others. @throws Error with what fails. */
  async open(): Promise<void> {
    const { launcher, directory } = this.#options;
    this.#holder = await readProcess(join(directory, "init"));
    this.#isNew = !(await this.#canEnter());
    if (this.#isNew) {
      await this.remove();
      await mkdir(directory, { mode: 0o700 });
      // An agent without a connection: a process that stays and keeps its namespaces alive.
      const words = ["program", agentBinary() ?? "", "loopback", "no-new-privileges", "capabilities", "0"];
      this.#holder = await launcher.launch(directory, "", words);
    }
    await this.keep();
  }

  /** Restarts the program if it has ended or has another configuration. @throws Error with its output. */
  async keep(): Promise<void> {
    const { launcher, directory, program, range } = this.#options;
    const holder = this.#namespace;
    const link = { pid: holder.pid, name: INTERFACE, prefix: range.replace(/\.0\.0\/16$/, ".255") };
    const argv = [program.path, ...program.arguments(link)];
    const left = await readProcess(join(directory, "program"));
    if (left !== undefined && (await isAlive(left))) {
      const running = await readFile(`/proc/${left.pid}/cmdline`, "utf8").catch(() => "");
      if (running.startsWith(`${argv.join("\0")}\0`)) return;
      await launcher.end(left);
    }
    const started = await launcher.start(directory, argv);
    const deadlineMs = performance.now() + START_TIMEOUT_MS;
    while (!(await this.#leadsOut(holder))) {
      const isInTime = performance.now() < deadlineMs;
      if (isInTime && (await isAlive(started))) {
        await sleep(LOOK_AGAIN_MS);
        continue;
      }
      await launcher.end(started);
      throw new Error(`${program.path} ${isInTime ? "ended" : "is too slow"}: ${await this.#outputTail()}`);
    }
  }

  inNamespace(argv: readonly string[]): readonly string[] {
    return ["nsenter", `--net=/proc/${this.#namespace.pid}/ns/net`, "--", ...argv];
  }

  /** Ends both processes and all connections through them. Safe to repeat. */
  async remove(): Promise<void> {
    const { launcher, directory } = this.#options;
    for (const record of ["program", "init"]) {
      const left = await readProcess(join(directory, record));
      if (left !== undefined) await launcher.end(left);
    }
    await launcher.remove(directory);
    this.#holder = undefined;
  }

  /** False without remains, or when ids have changed so that the launcher is root of another namespace. */
  async #canEnter(): Promise<boolean> {
    if (this.#holder === undefined || !(await isAlive(this.#holder))) return false;
    const { code } = await this.#options.launcher.run(this.inNamespace(["true"]));
    return code === 0;
  }

  get #namespace(): Init {
    if (this.#holder === undefined) throw new Error("the way out is not open");
    return this.#holder;
  }

  async #leadsOut({ pid }: Init): Promise<boolean> {
    const routes = await readFile(`/proc/${pid}/net/route`, "utf8").catch(() => "");
    return new RegExp(`^${INTERFACE}\\t0{8}\\t`, "m").test(routes);
  }

  async #outputTail(): Promise<string> {
    const log = await readFile(join(this.#options.directory, "log"), "utf8").catch(() => "");
    // It also complains about a missing system log, which does not stop it.
    const lines = log.split("\n").filter((line) => line !== "" && !line.includes("syslog"));
    return lines.slice(-LOG_LINES).join("; ");
  }
}

/** A program that relays traffic of a network namespace over its own sockets, without privileges. */
interface UplinkProgram {
  readonly path: string;
  /** Arguments that give a namespace an interface with an address and a default route. */
  arguments(link: UplinkLink): readonly string[];
}

interface UplinkLink {
  readonly pid: number;
  readonly name: string;
  /** First three bytes of the addresses, as in `10.213.255`. The namespace gets `.100`, the program `.2`. */
  readonly prefix: string;
}

const MTU = 1_500;
const TUN = "/dev/net/tun";

// Options that allow outgoing traffic alone: no port of the host is forwarded or mapped, and no address stands for the
// host.
const PASTA_OPTIONS = `
  --foreground --ipv4-only --config-net --no-netns-quit --no-map-gw --tcp-ports=none --udp-ports=none
  --tcp-ns=none --udp-ns=none --dns=none --no-dhcp --no-dhcpv6 --no-ndp --no-ra --netmask=24 --mtu=${MTU}
`
  .trim()
  .split(/\s+/);
const SLIRP_OPTIONS = `
  --configure --disable-host-loopback --disable-dns --enable-sandbox --enable-seccomp --netns-type=path
  --mtu=${MTU}
`
  .trim()
  .split(/\s+/);
const PROGRAMS: Readonly<Record<string, UplinkProgram["arguments"]>> = {
  pasta: ({ pid, name, prefix }) => [
    ...PASTA_OPTIONS,
    `--address=${prefix}.100`,
    `--gateway=${prefix}.2`,
    `--ns-ifname=${name}`,
    `--userns=/proc/${pid}/ns/user`,
    `--netns=/proc/${pid}/ns/net`,
  ],
  slirp4netns: ({ pid, name, prefix }) => [
    ...SLIRP_OPTIONS,
    `--cidr=${prefix}.0/24`,
    `--userns-path=/proc/${pid}/ns/user`,
    `/proc/${pid}/ns/net`,
    name,
  ],
};

/**
 * Finds the configured program, or the first that this host has.
 * @param configured full path.
 * @throws Error with what is missing.
 */
export async function findUplinkProgram(configured: string | undefined): Promise<UplinkProgram> {
  const path = configured ?? (await findHostProgram(Object.keys(PROGRAMS)));
  if (path === undefined || !(await canAccess(path, constants.X_OK))) {
    throw new Error(
      `egress: nat without root needs ${configured ?? "the program pasta or slirp4netns"}, which this host does not have`,
    );
  }
  const build = PROGRAMS[basename(path)];
  if (build === undefined) throw new Error(`egressProgram: ${path} is neither pasta nor slirp4netns`);
  const canMakeInterfaces = await canAccess(TUN, constants.R_OK | constants.W_OK);
  if (!canMakeInterfaces)
    throw new Error(`egress: nat without root needs ${TUN}, which this user cannot open`);
  return { path, arguments: build };
}
