import { readFile, rename, rm, writeFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { SandboxError } from "@coppice/core";
import { type Host, HostCommandError } from "./host.js";
import { type JailConfOptions, jailConf } from "./jail-conf.js";
import type { SandboxPaths } from "./sandbox-paths.js";

const PAUSE_ROUNDS = 100;
const PAUSE_MS = 10;
const NOT_FOUND = /not found/;

/** The node of sysctl(8) below which the kernel lists the parameters that jails can have. */
const PARAMETERS = "security.jail.param";

/** The jails of this host, each made and removed by a jail.conf(5) of its own. */
export class Jails {
  readonly #host: Host;
  readonly #known: ReadonlySet<string>;

  private constructor(host: Host, known: ReadonlySet<string>) {
    this.#host = host;
    this.#known = known;
  }

  /** Asks the kernel which parameters it knows: that differs from release to release. @throws HostCommandError */
  static async open(host: Host): Promise<Jails> {
    const listed = (await host.run("sysctl", ["-N", PARAMETERS])).split("\n");
    return new Jails(host, new Set(listed.map((name) => name.slice(PARAMETERS.length + 1))));
  }

  /** Makes a jail in which nothing runs yet. @throws HostCommandError */
  async create({ conf, name }: SandboxPaths, options: Omit<JailConfOptions, "known">): Promise<void> {
    await writeFile(`${conf}.new`, jailConf({ ...options, known: this.#known }), { mode: 0o600 });
    await rename(`${conf}.new`, conf);
    await this.#host.run("jail", ["-q", "-f", conf, "-c", name]);
    if (options.stack.kind === "shared") return;
    // Nothing inside may touch interfaces, the first address included.
    await this.#host.run("ifconfig", ["-j", name, "lo0", "inet", "127.0.0.1/8", "up"]);
  }

  /** Ends all processes of a jail, and unmounts what lies on its root. A missing one is fine. */
  async remove({ conf, name, root }: SandboxPaths): Promise<void> {
    const hasConf = await readFile(conf).then(
      () => true,
      () => false,
    );
    const words = hasConf ? ["-q", "-f", conf, "-r", name] : ["-q", "-R", name];
    const removed = await this.#host.try("jail", words);
    if (removed.code !== 0 && !NOT_FOUND.test(removed.stderr)) {
      throw new HostCommandError("jail", words, removed);
    }
    await this.#unmountBelow(root);
    await rm(conf, { force: true });
    await rm(`${conf}.new`, { force: true });
  }

  /** Stops every process of a jail: again, while one that was not stopped may have made another. */
  async pause(name: string): Promise<void> {
    for (let round = 0; round < PAUSE_ROUNDS; round++) {
      await this.#signal("STOP", name);
      const states = await this.#host.run("ps", ["-J", name, "-o", "state="]);
      const isMoving = states.split("\n").some((state) => /^\s*[^TZ\s]/.test(state));
      if (!isMoving) return;
      await sleep(PAUSE_MS);
    }
    await this.resume(name);
    throw new SandboxError("unavailable", "the processes of the sandbox could not be stopped");
  }

  /** Lets what was stopped go on. */
  async resume(name: string): Promise<void> {
    await this.#signal("CONT", name);
  }

  /** Names of all jails, dying ones included. */
  async names(): Promise<ReadonlySet<string>> {
    const lines = await this.#host.run("jls", ["-d", "name"]);
    return new Set(lines.split("\n").filter((line) => line !== ""));
  }

  async #signal(signal: string, name: string): Promise<void> {
    const words = [`-${signal}`, "-j", name];
    const result = await this.#host.try("pkill", words);
    // 1: there was no process to signal.
    if (result.code > 1 || result.code < 0) throw new HostCommandError("pkill", words, result);
  }

  /** What a jail that died, or was never finished, has left mounted. The clone itself stays. */
  async #unmountBelow(root: string): Promise<void> {
    const table = await this.#host.run("mount", ["-p"]);
    const points = table.split("\n").map((line) => line.split(/\s+/)[1] ?? "");
    const below = points.filter((point) => point.startsWith(`${root}/`)).toReversed();
    for (const point of below) await this.#host.run("umount", ["-f", point]);
  }
}
