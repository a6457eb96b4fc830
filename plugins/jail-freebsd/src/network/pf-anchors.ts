import type { Host } from "../host/host.js";
import type { HostProblem } from "../host/host-problem.js";

/** Anchors of pf(4) below one parent, each with the rules of one sandbox. */
export class PfAnchors {
  readonly #host: Host;
  readonly #parent: string;

  /** @param parent name in `anchor "<parent>/*"` of pf.conf. */
  constructor(host: Host, parent: string) {
    this.#host = host;
    this.#parent = parent;
  }

  /** Returns the parts of pf that the host lacks. */
  async problems(): Promise<readonly HostProblem[]> {
    const problems: HostProblem[] = [];
    const info = await this.#host.try("pfctl", ["-s", "info"]);
    if (!/^Status: Enabled/m.test(info.stdout)) {
      problems.push({ message: "pf is not enabled", fix: "sysrc pf_enable=YES && service pf start" });
    }
    const shown = await this.#host.try("pfctl", ["-s", "rules"]);
    const line = `anchor "${this.#parent}/*"`;
    if (!shown.stdout.split("\n").some((rule) => rule.startsWith(line))) {
      const fix = "take over config/freebsd/pf.conf, then service pf reload";
      problems.push({ message: `pf's rules have no ${line}`, fix });
    }
    return problems;
  }

  /** Replaces the contents of an anchor atomically. @throws HostCommandError, with the old rules in force. */
  async load(name: string, rules: string): Promise<void> {
    await this.#host.run("pfctl", ["-q", "-a", `${this.#parent}/${name}`, "-f", "-"], { input: rules });
  }

  /**
   * Removes an anchor; a missing one is fine. Its states stay. `-F all` would fail for an anchor that is missing or has
   * no tables, where pfctl reports the error of DIOCRCLRTABLES; an empty ruleset is loaded everywhere.
   */
  async flush(name: string): Promise<void> {
    await this.load(name, "");
  }

  async names(): Promise<readonly string[]> {
    const { stdout } = await this.#host.try("pfctl", ["-a", this.#parent, "-s", "Anchors"]);
    const start = `${this.#parent}/`;
    return stdout.split(/\s+/).flatMap((path) => (path.startsWith(start) ? [path.slice(start.length)] : []));
  }
}
