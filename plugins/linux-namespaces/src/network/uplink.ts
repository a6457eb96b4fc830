import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { agentBinary } from "@coppice/agent";
import type { Init, Launcher } from "../launcher/launcher.js";
import { isAlive, readProcess } from "../storage/sandbox-record.js";
import type { UplinkProgram } from "./uplink-program.js";

export interface UplinkOptions {
  readonly launcher: Launcher;
  readonly program: UplinkProgram;
  /** Where it keeps its records; its own. */
  readonly directory: string;
  /** Private range that it takes the last 256 addresses of: `10.213.0.0/16`. */
  readonly range: string;
}

const INTERFACE = "uplink";
const START_TIMEOUT_MS = 5_000;
const LOOK_AGAIN_MS = 10;
const LOG_LINES = 3;

/**
 * The way out for the sandboxes of a server that may not touch the network of its host: a network namespace of the
 * installation, in which it is root, and a program that carries what leaves it. Both outlive the server and are taken
 * over by the next one.
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

  /** In a few words: what it is made of. */
  get description(): string {
    return `${this.#options.program.path} and nftables, in a network namespace of this user`;
  }

  /** Takes over what an earlier server left, and makes what is missing. @throws Error that says what fails. */
  async open(): Promise<void> {
    const { launcher, directory } = this.#options;
    this.#holder = await readProcess(join(directory, "init"));
    this.#isNew = !(await this.#canEnter());
    if (this.#isNew) {
      await this.remove();
      await mkdir(directory, { mode: 0o700 });
      // An agent that nobody connects to: a process that stays, and holds the namespaces that it was started in.
      const words = ["program", agentBinary() ?? "", "loopback", "no-new-privileges", "capabilities", "0"];
      this.#holder = await launcher.launch(directory, "", words);
    }
    await this.keep();
  }

  /** Starts the program anew where it has ended, or is not as configured. @throws Error with its own words. */
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

  /** The words that run a program in the namespace. */
  within(argv: readonly string[]): readonly string[] {
    return ["nsenter", `--net=/proc/${this.#namespace.pid}/ns/net`, "--", ...argv];
  }

  /** Ends both, and with them every connection through it. Safe to repeat. */
  async remove(): Promise<void> {
    const { launcher, directory } = this.#options;
    for (const record of ["program", "init"]) {
      const left = await readProcess(join(directory, record));
      if (left !== undefined) await launcher.end(left);
    }
    await launcher.remove(directory);
    this.#holder = undefined;
  }

  /** Not where nothing was left, and not where ids have changed so that the launcher is root of another namespace. */
  async #canEnter(): Promise<boolean> {
    if (this.#holder === undefined || !(await isAlive(this.#holder))) return false;
    const { code } = await this.#options.launcher.run(this.within(["true"]));
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
    // It also complains of a host without a system log, which does not stop it.
    const lines = log.split("\n").filter((line) => line !== "" && !line.includes("syslog"));
    return lines.slice(-LOG_LINES).join("; ");
  }
}
