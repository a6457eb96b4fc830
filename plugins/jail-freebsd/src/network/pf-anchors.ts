import type { Host } from "../host/host.js";
import type { HostProblem } from "../host/host-problem.js";

/** The anchors of pf(4) below one, each with the rules of one sandbox. */
export class PfAnchors {
  readonly #host: Host;
  readonly #parent: string;

  /** @param parent what pf.conf has as `anchor "<parent>/*"`. */
  constructor(host: Host, parent: string) {
    this.#host = host;
    this.#parent = parent;
  }

  /**
   * Parts of pf that the host lacks.
   * @param kinds `anchor`, and `nat-anchor` where addresses are translated by the rules of sandboxes.
   */
  async problems(kinds: readonly ("anchor" | "nat-anchor")[]): Promise<readonly HostProblem[]> {
    const problems: HostProblem[] = [];
    const info = await this.#host.try("pfctl", ["-s", "info"]);
    if (!/^Status: Enabled/m.test(info.stdout)) {
      problems.push({ message: "pf is not enabled", fix: "sysrc pf_enable=YES && service pf start" });
    }
    for (const kind of kinds) {
      const shown = await this.#host.try("pfctl", ["-s", kind === "anchor" ? "rules" : "nat"]);
      const line = `${kind} "${this.#parent}/*"`;
      if (shown.stdout.split("\n").some((rule) => rule.startsWith(line))) continue;
      problems.push({
        message: `pf's rules have no ${line}`,
        fix: "take over config/freebsd/pf.conf, then service pf reload",
      });
    }
    return problems;
  }

  /** Replaces all that an anchor holds, at once. @throws HostCommandError, with everything as it was. */
  async load(name: string, rules: string): Promise<void> {
    await this.#host.run("pfctl", ["-q", "-a", `${this.#parent}/${name}`, "-f", "-"], { input: rules });
  }

  /** Removes an anchor; a missing one is fine. States that its rules have made stay. */
  async flush(name: string): Promise<void> {
    await this.#host.run("pfctl", ["-q", "-a", `${this.#parent}/${name}`, "-F", "all"]);
  }

  /** Names of those that there are. */
  async names(): Promise<readonly string[]> {
    const { stdout } = await this.#host.try("pfctl", ["-a", this.#parent, "-s", "Anchors"]);
    const start = `${this.#parent}/`;
    return stdout.split(/\s+/).flatMap((path) => (path.startsWith(start) ? [path.slice(start.length)] : []));
  }
}
