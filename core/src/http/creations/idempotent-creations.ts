import { createHash } from "node:crypto";
import type { Clock } from "../../kernel/clock.js";
import { SandboxError } from "../../kernel/errors.js";
import type { CreateSandbox, Sandboxes } from "../../sandbox/life/sandboxes.js";
import type { LiveSandbox } from "../../sandbox/model/live-sandbox.js";

export interface IdempotentCreationsOptions {
  readonly clock: Clock;
  /** Time for which a key is remembered. */
  readonly keptMs: number;
  /** Maximum of remembered keys; the oldest go first. */
  readonly most: number;
}

/** A creation that its client may repeat. */
export interface KeyedCreation {
  readonly tenant: string;
  readonly key: string;
  readonly wanted: CreateSandbox;
  /** The request of the client, which a repetition has to equal. */
  readonly asked: unknown;
}

/** The sandboxes of a tenant, as a creation uses them. */
type OwnSandboxes = Pick<Sandboxes, "create" | "find" | "list">;

interface Creation {
  readonly fingerprint: string;
  readonly made: Promise<LiveSandbox>;
  readonly expiresAtMs: number;
}

/** Makes one sandbox for all requests of a tenant with the same key, also for concurrent ones. */
export class IdempotentCreations {
  readonly #options: IdempotentCreationsOptions;
  readonly #creations = new Map<string, Creation>();

  constructor(options: IdempotentCreationsOptions) {
    this.#options = options;
  }

  /**
   * The sandbox of a key. A creation goes on when its client leaves, which will repeat the request.
   * @param own the sandboxes of the tenant.
   * @throws SandboxError already_exists when the key was used for another request, or its sandbox has ended; the errors
   * of `Sandboxes.create`, after which the key is free again.
   */
  async create(own: OwnSandboxes, { tenant, key, wanted, asked }: KeyedCreation): Promise<LiveSandbox> {
    const name = JSON.stringify([tenant, key]);
    const fingerprint = fingerprintOf(asked);
    const known = this.#find(name) ?? this.#outlived(own, key);
    if (known !== undefined) {
      if (known.fingerprint !== fingerprint) {
        throw new SandboxError("idempotency_key_reused", "this Idempotency-Key was used for another request");
      }
      const { record } = await known.made;
      const sandbox = own.find(record.id);
      if (sandbox !== undefined) return sandbox;
      throw new SandboxError(
        "idempotent_sandbox_ended",
        "the sandbox that was made with this Idempotency-Key has ended",
      );
    }
    const made = own.create({ ...wanted, idempotency: { key, fingerprint } });
    this.#remember(name, {
      fingerprint,
      made,
      expiresAtMs: this.#options.clock.now() + this.#options.keptMs,
    });
    try {
      return await made;
    } catch (error) {
      this.#creations.delete(name);
      throw error;
    }
  }

  #find(name: string): Creation | undefined {
    const creation = this.#creations.get(name);
    return creation !== undefined && creation.expiresAtMs > this.#options.clock.now() ? creation : undefined;
  }

  /** A sandbox of that key from an earlier server. */
  #outlived(own: OwnSandboxes, key: string): Creation | undefined {
    const { clock, keptMs } = this.#options;
    for (const sandbox of own.list()) {
      const { idempotency, startedAtMs } = sandbox.record;
      if (idempotency?.key !== key || startedAtMs + keptMs <= clock.now()) continue;
      const { fingerprint } = idempotency;
      return { fingerprint, made: Promise.resolve(sandbox), expiresAtMs: startedAtMs + keptMs };
    }
    return undefined;
  }

  #remember(name: string, creation: Creation): void {
    // To the end: the earliest are dropped first.
    this.#creations.delete(name);
    this.#creations.set(name, creation);
    for (const [oldest, { expiresAtMs }] of this.#creations) {
      if (this.#creations.size <= this.#options.most && expiresAtMs > this.#options.clock.now()) return;
      this.#creations.delete(oldest);
    }
  }
}

/** Equal for equal requests, with their parts in any order. A digest, so that it reveals no variables. */
function fingerprintOf(asked: unknown): string {
  const sorted = (_key: string, value: unknown): unknown =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).toSorted(([a], [b]) => (a < b ? -1 : 1)))
      : value;
  return createHash("sha256").update(JSON.stringify(asked, sorted)).digest("hex");
}
