import {
  type Clock,
  type LiveSandbox,
  parseSandboxId,
  type RequestCarrier,
  SandboxError,
  type Sandboxes,
  sandboxesOf,
  tenantOf,
} from "@coppice/core";
import type { Commands } from "@coppice/plugin-commands";
import type { CommandsV1Store, NamedSandbox } from "../store/commands-v1-store.js";
import { REASONS } from "../reasons.js";

interface NamedSandboxesOptions {
  readonly store: () => CommandsV1Store["sandboxes"];
  readonly sandboxes: Sandboxes;
  readonly commands: Commands;
  readonly clock: Clock;
}

/** The sandboxes of the server by id or name, with what this plugin adds to them. */
export class NamedSandboxes {
  readonly #options: NamedSandboxesOptions;
  /** When this server began: it does not know what came before. */
  readonly #beganAtMs: number;
  /** Names of sandboxes that are being created. */
  readonly #reserved = new Set<string>();

  constructor(options: NamedSandboxesOptions) {
    this.#options = options;
    this.#beganAtMs = options.clock.now();
  }

  /**
   * The id of a sandbox of the sender, given by id or name. It may have ended: its logs are kept longer.
   * @throws SandboxError not_found for an unknown sandbox, and for one of another tenant.
   */
  async knownId(carrier: RequestCarrier, text: string | undefined): Promise<string> {
    const own = sandboxesOf(carrier, this.#options.sandboxes);
    const id = this.#idOf(carrier, text);
    if (!(await own.remembers(id))) own.get(id);
    return id;
  }

  /** A sandbox of the sender, given by id or name. @throws SandboxError not_found */
  get(carrier: RequestCarrier, text: string | undefined): LiveSandbox {
    return sandboxesOf(carrier, this.#options.sandboxes).get(this.#idOf(carrier, text));
  }

  /** True for the id or the name of a tenant's sandbox, and for the id of one that has ended and is remembered. */
  async has(tenant: string, text: string): Promise<boolean> {
    const [id = ""] = text.split("-");
    return this.isTaken(tenant, text) || this.#options.sandboxes.of(tenant).remembers(id);
  }

  /** True when a tenant has a sandbox of that name; the id of a sandbox is its name until it gets one. */
  isTaken(tenant: string, name: string): boolean {
    const { sandboxes, store } = this.#options;
    const other = store().get({ owner: tenant, name });
    return (
      sandboxes.of(tenant).find(name) !== undefined ||
      (other !== undefined && sandboxes.find(other.id) !== undefined)
    );
  }

  /** False for a sandbox that another interface made, and for one whose creation a killed server did not finish. */
  knows({ record }: LiveSandbox): boolean {
    return this.#options.store().has({ id: record.id });
  }

  /** What this plugin knows of a sandbox; of one that another interface made, what its record says. */
  describe({ record }: LiveSandbox): NamedSandbox {
    const { id, owner, onTimeout } = record;
    const tier = onTimeout === "pause" ? "persistent" : "ephemeral";
    return this.#options.store().get({ id }) ?? { id, owner, name: id, tier, autoStopMs: 0 };
  }

  /** Time of the last request, since the Unix epoch; now while a request or a command runs. */
  lastActivityMs(sandbox: LiveSandbox): number {
    const { commands, clock } = this.#options;
    const isBusy =
      sandbox.record.state === "running" &&
      (sandbox.requests > 0 || commands.list(sandbox).some(({ end }) => end === undefined));
    if (isBusy) return clock.now();
    const endedAtMs = commands.list(sandbox).map(({ end }) => end?.endedAtMs ?? 0);
    return Math.max(sandbox.lastUsedAtMs, ...endedAtMs);
  }

  /** Time since which a sandbox is idle, as far as this server knows. */
  idleSinceMs(sandbox: LiveSandbox): number {
    return Math.max(this.lastActivityMs(sandbox), this.#beganAtMs);
  }

  /**
   * Creates a sandbox under its name, which no other one of its owner has or gets meanwhile.
   * @param named all but the id; the name is the id when absent.
   * @throws SandboxError already_exists; the errors of `create`.
   */
  async create(
    named: Omit<NamedSandbox, "id" | "name"> & { readonly name: string | undefined },
    create: () => Promise<LiveSandbox>,
  ): Promise<LiveSandbox> {
    const { owner, name } = named;
    using _reserved = name === undefined ? undefined : this.#reserve(owner, name);
    const sandbox = await create();
    const { id } = sandbox.record;
    try {
      this.#options.store().put({ ...named, id, name: name ?? id });
    } catch (error) {
      // Without its name and its end it would be another one than its creator asked for.
      await this.#options.sandboxes.kill(id).catch(() => undefined);
      throw error;
    }
    return sandbox;
  }

  /** Changes what this plugin knows of a sandbox. @throws SandboxError already_exists for a name that another has. */
  change(
    sandbox: LiveSandbox,
    change: Partial<Pick<NamedSandbox, "name" | "autoStopMs" | "deadlineMs">>,
  ): void {
    const known = this.describe(sandbox);
    // A sandbox has its id for a name without being asked.
    const isRenamed = change.name !== undefined && change.name !== known.name && change.name !== known.id;
    using _reserved = isRenamed ? this.#reserve(known.owner, change.name ?? "") : undefined;
    this.#options.store().put({ ...known, ...change });
  }

  #idOf(carrier: RequestCarrier, text = ""): string {
    const own = sandboxesOf(carrier, this.#options.sandboxes);
    if (own.find(text) !== undefined) return text;
    return this.#options.store().get({ owner: tenantOf(carrier), name: text })?.id ?? parseSandboxId(text);
  }

  #reserve(owner: string, name: string): Disposable {
    const key = JSON.stringify([owner, name]);
    if (this.isTaken(owner, name) || this.#reserved.has(key)) {
      throw new SandboxError(REASONS.sandbox_name_taken, `you have a sandbox of the name '${name}' already`);
    }
    const other = this.#options.store().get({ owner, name });
    if (other !== undefined) this.#options.store().remove({ id: other.id });
    this.#reserved.add(key);
    return { [Symbol.dispose]: () => this.#reserved.delete(key) };
  }
}

/** The part of a path right below another one, as an id or a name; undefined for a path that is elsewhere. */
export function nameBelow(path: string): (pathname: string) => string | undefined {
  const start = `${path}/`;
  return (pathname) => (pathname.startsWith(start) ? pathname.slice(start.length).split("/")[0] : undefined);
}

/** Stops a sandbox: its processes end. A persistent one keeps its files, an ephemeral one is deleted. */
export async function stopSandbox(
  sandboxes: Pick<Sandboxes, "kill" | "pause">,
  { record }: LiveSandbox,
  tier: NamedSandbox["tier"],
): Promise<void> {
  if (tier === "ephemeral") await sandboxes.kill(record.id);
  else if (record.state !== "paused") await sandboxes.pause(record.id, { keepsMemory: false });
}
