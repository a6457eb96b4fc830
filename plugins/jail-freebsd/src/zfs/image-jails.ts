import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { FullLimits } from "@coppice/core/backend";
import type { JailSettings } from "../jail-freebsd-config.js";
import type { NullfsMount } from "../jails/jail-conf.js";
import type { Jails } from "../jails/jails.js";
import type { ResourceRules } from "../jails/resource-rules.js";
import type { SandboxPaths } from "../jails/sandbox-paths.js";

/** Of umoci, which reads one layer at a time, and of tar. */
const LIMITS: Omit<FullLimits, "diskMiB"> = { cpuCount: 2, memoryMiB: 1024, processes: 256 };

/** Jails for the files of images. They have no network, and see nothing of the host but what is mounted for them. */
export class ImageJails {
  readonly #jails: Jails;
  readonly #rules: ResourceRules | undefined;
  readonly #settings: JailSettings;

  constructor(jails: Jails, rules: ResourceRules | undefined, settings: JailSettings) {
    this.#jails = jails;
    this.#rules = rules;
    this.#settings = settings;
  }

  /** Creates a jail without processes, the directories that are mounted on, and the account that jexec(8) looks up. */
  async create(place: SandboxPaths, mounts: readonly NullfsMount[]): Promise<void> {
    for (const target of ["/dev", "/etc", ...mounts.map((mount) => mount.target)]) {
      await mkdir(place.root + target, { recursive: true });
    }
    await writeFile(join(place.root, "etc/passwd"), "root:*:0:0::/:/usr/sbin/nologin\n");
    await this.#rules?.set(place.name, { ...LIMITS, diskMiB: 0 });
    await this.#jails.create(place, {
      name: place.name,
      hostname: place.name,
      root: place.root,
      devfsRuleset: this.#settings.devfsRuleset,
      procfs: false,
      sysvipc: false,
      mounts,
    });
  }

  /** Ends all processes of a jail, and removes its mounts and rules. A missing one is fine. */
  async end(place: SandboxPaths): Promise<void> {
    await this.#jails.remove(place);
    await this.#rules?.remove(place.name);
  }
}
