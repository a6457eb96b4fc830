import type { SandboxId } from "../contract/backend.js";
import type { NetworkPolicy } from "../contract/egress-rules.js";
import type { EndedSandbox } from "../ledger/ledger.js";
import type { EndReason, LiveSandbox } from "../model/live-sandbox.js";
import type { LimitsChange } from "../model/requested-limits.js";
import type { CreateSandbox, PauseOptions, Sandboxes } from "./sandboxes.js";
import { unknownSandbox } from "../contract/unknown-sandbox.js";

/** The sandboxes of one tenant; for others' it answers as for unknown ones. */
export class TenantSandboxes implements Sandboxes {
  readonly #all: Sandboxes;
  readonly #tenant: string;
  readonly #ownerOf: (id: SandboxId) => string | undefined;

  /** @param ownerOf answers for every sandbox that is not completely removed. */
  constructor(all: Sandboxes, tenant: string, ownerOf: (id: SandboxId) => string | undefined) {
    this.#all = all;
    this.#tenant = tenant;
    this.#ownerOf = ownerOf;
  }

  get defaultTimeoutMs(): number {
    return this.#all.defaultTimeoutMs;
  }

  of(tenant: string): Sandboxes {
    return this.#all.of(tenant);
  }

  create(request: CreateSandbox, signal?: AbortSignal): Promise<LiveSandbox> {
    return this.#all.create({ ...request, owner: this.#tenant }, signal);
  }

  find(id: SandboxId): LiveSandbox | undefined {
    return this.#owns(id) ? this.#all.find(id) : undefined;
  }

  get(id: SandboxId): LiveSandbox {
    this.#check(id);
    return this.#all.get(id);
  }

  onCreated(listener: (sandbox: LiveSandbox) => void): void {
    this.#all.onCreated((sandbox) => {
      if (sandbox.record.owner === this.#tenant) listener(sandbox);
    });
  }

  async remembers(id: SandboxId): Promise<boolean> {
    return this.#owns(id) || (await this.endOf(id)) !== undefined;
  }

  async endOf(id: SandboxId): Promise<EndedSandbox | undefined> {
    const ended = await this.#all.endOf(id);
    return ended?.owner === this.#tenant ? ended : undefined;
  }

  list(): readonly LiveSandbox[] {
    return this.#all.list().filter(({ record }) => record.owner === this.#tenant);
  }

  async kill(id: SandboxId, reason?: EndReason): Promise<void> {
    this.#check(id);
    await this.#all.kill(id, reason);
  }

  async setTimeout(id: SandboxId, timeoutMs: number): Promise<void> {
    this.#check(id);
    await this.#all.setTimeout(id, timeoutMs);
  }

  async extend(id: SandboxId, timeoutMs: number): Promise<void> {
    this.#check(id);
    await this.#all.extend(id, timeoutMs);
  }

  async pause(id: SandboxId, options?: PauseOptions): Promise<void> {
    this.#check(id);
    await this.#all.pause(id, options);
  }

  async resume(id: SandboxId, timeoutMs: number, options?: PauseOptions): Promise<boolean> {
    this.#check(id);
    return this.#all.resume(id, timeoutMs, options);
  }

  async use(sandbox: LiveSandbox): Promise<() => void> {
    this.#check(sandbox.record.id);
    return this.#all.use(sandbox);
  }

  async setNetworkPolicy(id: SandboxId, policy: NetworkPolicy): Promise<void> {
    this.#check(id);
    await this.#all.setNetworkPolicy(id, policy);
  }

  async setLimits(id: SandboxId, change: LimitsChange): Promise<void> {
    this.#check(id);
    await this.#all.setLimits(id, change);
  }

  #owns(id: SandboxId): boolean {
    return this.#ownerOf(id) === this.#tenant;
  }

  #check(id: SandboxId): void {
    if (!this.#owns(id)) throw unknownSandbox(id);
  }
}
