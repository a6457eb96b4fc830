import { rm } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { join } from "node:path";
import { SandboxError } from "@coppice/core";
import { replaceFile, type SandboxId } from "@coppice/core/backend";
import { z } from "zod";
import { type Host, HostCommandError } from "../host/host.js";
import { isThere } from "../host/host-facts.js";
import { type JailConfOptions, jailConf, removalConf } from "./jail-conf.js";

const PAUSE_ROUNDS = 100;
const PAUSE_MS = 10;
const UNMOUNT_ROUNDS = 50;
const NOT_FOUND = /not found/;

/** Node of sysctl(8) below which the kernel lists the jail parameters it supports. */
const PARAMETERS = "security.jail.param";

const listing = z.object({
  "jail-information": z.object({ jail: z.array(z.object({ name: z.string() })).default([]) }),
});

export class Jails {
  readonly #host: Host;
  readonly #known: ReadonlySet<string>;

  private constructor(host: Host, known: ReadonlySet<string>) {
    this.#host = host;
    this.#known = known;
  }

  /** Asks the kernel for its parameters, which differ between releases. @throws HostCommandError */
  static async open(host: Host): Promise<Jails> {
    const listed = (await host.run("sysctl", ["-N", PARAMETERS])).split("\n");
    const known = listed.map((name) => name.slice(PARAMETERS.length + 1));
    // Those that are not denied by name would be allowed.
    if (!known.some((name) => name.startsWith("allow.")))
      throw new Error(`sysctl -N ${PARAMETERS} lists nothing that jails may be allowed`);
    return new Jails(host, new Set(known));
  }

  async create({ conf, name }: SandboxPaths, options: Omit<JailConfOptions, "known">): Promise<void> {
    await replaceFile(conf, jailConf({ ...options, known: this.#known }), { mode: 0o600 });
    await this.#host.run("jail", ["-q", "-f", conf, "-c", name]);
    // Before anything runs inside: the lo0 of a new stack has no address.
    await this.#host.run("ifconfig", ["-j", name, "lo0", "inet", "127.0.0.1/8", "up"]);
  }

  /**
   * Ends all processes of a jail and unmounts everything below its root. A missing jail is fine. @throws
   * HostCommandError
   */
  async remove(paths: SandboxPaths): Promise<void> {
    const { conf, root } = paths;
    const words = ["-q", "-f", conf, "-r", paths.name];
    if (await isThere(conf)) await this.#remove(paths, words);
    // A jail of this name may belong to another program: without our file, its root path identifies it.
    else if ((await this.#rootOf(paths.name)) === root) {
      await this.#remove(paths, words.with(2, "-"), removalConf(paths));
    }
    await this.#unmountBelow(root);
    await rm(conf, { force: true });
    await rm(`${conf}.new`, { force: true });
  }

  /** Stops every process of a jail. Repeats, because a process not yet stopped may have forked. */
  async pause(name: string): Promise<void> {
    for (let round = 0; round < PAUSE_ROUNDS; round++) {
      await this.#signal("STOP", name);
      if (!(await this.#hasRunning(name))) return;
      await sleep(PAUSE_MS);
    }
    await this.resume(name);
    throw new SandboxError("destruction_pending", "the processes of the sandbox could not be stopped");
  }

  async resume(name: string): Promise<void> {
    await this.#signal("CONT", name);
  }

  /** Names of all jails. As JSON, which shows whether the list is whole. */
  async names(): Promise<ReadonlySet<string>> {
    const text = await this.#host.run("jls", ["--libxo", "json", "name"]);
    try {
      const { "jail-information": information } = listing.parse(JSON.parse(text));
      return new Set(information.jail.map(({ name }) => name));
    } catch (error) {
      throw new Error(`jls ended with 0, but its list is not whole: '${text.slice(0, 200)}'`, {
        cause: error,
      });
    }
  }

  async #hasRunning(name: string): Promise<boolean> {
    const words = ["-J", name, "-o", "state="];
    const { code, stdout, stderr } = await this.#host.try("ps", words);
    // Code 1 without output: there is no process.
    if (code === 0 ? stdout.trim() === "" : code !== 1 || stderr !== "")
      throw new HostCommandError("ps", words, { code, stdout, stderr });
    return stdout.split("\n").some((state) => /^\s*[^TZ\s]/.test(state));
  }

  async #signal(signal: string, name: string): Promise<void> {
    const words = [`-${signal}`, "-j", name];
    const result = await this.#host.try("pkill", words);
    // 1: there was no process to signal.
    if (result.code > 1 || result.code < 0) throw new HostCommandError("pkill", words, result);
  }

  async #remove({ name, root }: SandboxPaths, words: readonly string[], input?: string): Promise<void> {
    const removed = await this.#host.try("jail", words, input === undefined ? {} : { input });
    if (removed.code === 0 || NOT_FOUND.test(removed.stderr)) return;
    // The kernel kills without waiting: jail(8) may have found the mounts in use although the jail was already gone.
    if ((await this.#rootOf(name)) === root) throw new HostCommandError("jail", words, removed);
  }

  async #rootOf(name: string): Promise<string | undefined> {
    const { code, stdout } = await this.#host.try("jls", ["-j", name, "path"]);
    return code === 0 ? stdout.trim() : undefined;
  }

  /** Unmounts what is left of a jail that died, was never finished, or was in use. The clone itself stays mounted. */
  async #unmountBelow(root: string): Promise<void> {
    for (let round = 1; ; round++) {
      const table = await this.#host.run("mount", ["-p"]);
      const points = table.split("\n").map((line) => line.split(/\s+/)[1] ?? "");
      const below = points.filter((point) => point.startsWith(`${root}/`)).toReversed();
      if (below.length === 0) return;
      const words = ["-f", ...below];
      const result = await this.#host.try("umount", words);
      if (result.code === 0) return;
      if (round === UNMOUNT_ROUNDS) throw new HostCommandError("umount", words, result);
      await sleep(PAUSE_MS);
    }
  }
}

/** Names of a sandbox on the host, and paths of its files there. */
export interface SandboxPaths {
  readonly name: string;
  readonly root: string;
  readonly conf: string;
  readonly socket: string;
  /** Socket of the helper that starts commands. */
  readonly helper: string;
}

/** @throws Error for an id that is not `[a-z0-9]+`. */
export function sandboxPaths(directory: string, id: SandboxId): SandboxPaths {
  if (!/^[a-z0-9]+$/.test(id)) throw new Error(`'${id}' is no id of a sandbox`);
  const name = `e2b-${id}`;
  return {
    name,
    root: join(directory, "roots", name),
    conf: join(directory, "conf", `${name}.conf`),
    socket: join(directory, "sockets", id),
    helper: join(directory, "helpers", id),
  };
}
