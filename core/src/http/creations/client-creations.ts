import { createHash } from "node:crypto";
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Clock } from "../../kernel/clock.js";
import { SandboxError, messageOf } from "../../kernel/errors.js";
import type { CreateSandbox, Sandboxes } from "../../sandbox/life/sandboxes.js";
import type { LiveSandbox } from "../../sandbox/model/live-sandbox.js";
import {
  noteSandbox,
  type RequestCarrier,
  requestOf,
  type SurfaceRequest,
} from "../surfaces/surface-request.js";
import { tenantOf } from "../surfaces/permit.js";

/** The parts of koa's context that a creation uses. */
export type CreationContext = Extract<RequestCarrier, { readonly state: unknown }> & {
  readonly req: IncomingMessage;
  readonly res: ServerResponse;
};

/** A sandbox for a client. */
interface ClientCreation {
  /** The sandboxes of the client's tenant. */
  readonly own: Pick<Sandboxes, "create" | "find" | "list" | "kill">;
  readonly wanted: CreateSandbox;
  /** The request, which a repetition with the same key has to equal; `wanted` when absent. */
  readonly asked?: unknown;
}

interface ClientCreationsOptions {
  readonly clock: Clock;
  /** Time for which a key is remembered. */
  readonly keptMs: number;
  /** Maximum of remembered keys; the oldest of the tenant with the most go first. */
  readonly most: number;
}

interface KeyedCreation {
  readonly tenant: string;
  readonly fingerprint: string;
  readonly made: Promise<LiveSandbox>;
  readonly expiresAtMs: number;
}

/** Makes sandboxes for the clients of a surface: one for all requests of a tenant with the same `Idempotency-Key`. */
export class ClientCreations {
  readonly #options: ClientCreationsOptions;
  readonly #keyed = new Map<string, KeyedCreation>();
  /** How many of them a tenant has. */
  readonly #counts = new Map<string, number>();

  constructor(options: ClientCreationsOptions) {
    this.#options = options;
  }

  /**
   * Without a key the sandbox ends when its client leaves before the answer: no other client knows its id. With one the
   * creation goes on, because the client will repeat its request.
   * @throws SandboxError invalid_argument for an invalid key; already_exists when the key was used for another request,
   * or its sandbox has ended; the errors of `Sandboxes.create`, after which the key is free again.
   */
  async create(ctx: CreationContext, { own, wanted, asked = wanted }: ClientCreation): Promise<LiveSandbox> {
    const key = parseIdempotencyKey(ctx.req.headers["idempotency-key"]);
    const sandbox =
      key === undefined
        ? await createSandbox(own, wanted, { request: requestOf(ctx), response: ctx.res })
        : await this.#createOnce(key, tenantOf(ctx), { own, wanted, asked });
    noteSandbox(ctx, sandbox.record.id);
    return sandbox;
  }

  async #createOnce(
    key: string,
    tenant: string,
    { own, wanted, asked }: ClientCreation,
  ): Promise<LiveSandbox> {
    const name = JSON.stringify([tenant, key]);
    const fingerprint = fingerprintOf(asked);
    const known = this.#find(name) ?? this.#outlived(own, { key, tenant });
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
      tenant,
      fingerprint,
      made,
      expiresAtMs: this.#options.clock.now() + this.#options.keptMs,
    });
    try {
      return await made;
    } catch (error) {
      this.#forget(name);
      throw error;
    }
  }

  #find(name: string): KeyedCreation | undefined {
    const creation = this.#keyed.get(name);
    return creation !== undefined && creation.expiresAtMs > this.#options.clock.now() ? creation : undefined;
  }

  /** A sandbox of that key from an earlier server. */
  #outlived(
    own: ClientCreation["own"],
    { key, tenant }: { readonly key: string; readonly tenant: string },
  ): KeyedCreation | undefined {
    const { clock, keptMs } = this.#options;
    for (const sandbox of own.list()) {
      const { idempotency, startedAtMs } = sandbox.record;
      if (idempotency?.key !== key || startedAtMs + keptMs <= clock.now()) continue;
      const { fingerprint } = idempotency;
      return { tenant, fingerprint, made: Promise.resolve(sandbox), expiresAtMs: startedAtMs + keptMs };
    }
    return undefined;
  }

  #remember(name: string, creation: KeyedCreation): void {
    // Moved to the end of the map: its first entries are dropped first.
    this.#forget(name);
    this.#keyed.set(name, creation);
    const { tenant } = creation;
    this.#counts.set(tenant, (this.#counts.get(tenant) ?? 0) + 1);
    for (const [oldest, { expiresAtMs }] of this.#keyed) {
      if (expiresAtMs > this.#options.clock.now()) break;
      this.#forget(oldest);
    }
    if (this.#keyed.size > this.#options.most) this.#forgetOldest();
  }

  /** Of the tenants with the most. */
  #forgetOldest(): void {
    const most = Math.max(...this.#counts.values());
    for (const [oldest, { tenant }] of this.#keyed) {
      if ((this.#counts.get(tenant) ?? 0) < most) continue;
      this.#forget(oldest);
      return;
    }
  }

  #forget(name: string): void {
    const tenant = this.#keyed.get(name)?.tenant;
    if (tenant === undefined) return;
    this.#keyed.delete(name);
    const left = (this.#counts.get(tenant) ?? 0) - 1;
    if (left > 0) this.#counts.set(tenant, left);
    else this.#counts.delete(tenant);
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

const IDEMPOTENCY_KEY = /^[\x21-\x7e]{1,255}$/;

/** The value of the header `Idempotency-Key`. @throws SandboxError invalid_argument for an invalid one. */
export function parseIdempotencyKey(value: string | readonly string[] | undefined): string | undefined {
  if (value === undefined) return undefined;
  if (typeof value === "string" && IDEMPOTENCY_KEY.test(value)) return value;
  throw new SandboxError("request_invalid", "Idempotency-Key: expected 1 to 255 printable characters");
}

interface Waiting {
  readonly request: Pick<SurfaceRequest, "signal" | "log">;
  readonly response: ServerResponse;
}

/**
 * Makes a sandbox for a client, and ends it when the client leaves before the answer: no other client knows its id.
 * @throws the errors of `Sandboxes.create`; canceled when the client has left.
 */
export async function createSandbox(
  sandboxes: Pick<Sandboxes, "create" | "kill">,
  wanted: CreateSandbox,
  waiting: Waiting,
): Promise<LiveSandbox> {
  const sandbox = await sandboxes.create(wanted, waiting.request.signal);
  endUnlessClaimed(sandboxes, [sandbox], waiting);
  return sandbox;
}

/** Ends sandboxes whose client has left. @throws SandboxError canceled in that case. */
export function endUnlessClaimed(
  sandboxes: Pick<Sandboxes, "kill">,
  made: readonly LiveSandbox[],
  { request, response }: Waiting,
): void {
  const discard = (): void => {
    for (const { record } of made) {
      sandboxes.kill(record.id).catch((error: unknown) => {
        // It may have ended by itself, or by another client, meanwhile.
        if (error instanceof SandboxError && error.code === "not_found") return;
        request.log.warn(
          { sandboxId: record.id, reason: messageOf(error) },
          "an unclaimed sandbox could not be ended",
        );
      });
    }
  };
  if (request.signal.aborted) {
    discard();
    throw new SandboxError("client_gone", "the client is gone");
  }
  response.once("close", () => {
    if (!response.writableFinished) discard();
  });
}
