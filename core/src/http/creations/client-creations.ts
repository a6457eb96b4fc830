import type { IncomingMessage, ServerResponse } from "node:http";
import type { CreateSandbox, Sandboxes } from "../../sandbox/life/sandboxes.js";
import type { LiveSandbox } from "../../sandbox/model/live-sandbox.js";
import { parseIdempotencyKey } from "../messages/idempotency-key.js";
import { noteSandbox, type RequestCarrier, requestOf } from "../surfaces/surface-request.js";
import { tenantOf } from "../surfaces/tenant-of.js";
import { createSandbox } from "./claimed.js";
import { IdempotentCreations, type IdempotentCreationsOptions } from "./idempotent-creations.js";

/** The parts of koa's context that a creation uses. */
export type CreationContext = Extract<RequestCarrier, { readonly state: unknown }> & {
  readonly req: IncomingMessage;
  readonly res: ServerResponse;
};

/** A sandbox for a client. */
export interface ClientCreation {
  /** The sandboxes of the client's tenant. */
  readonly own: Pick<Sandboxes, "create" | "find" | "list" | "kill">;
  readonly wanted: CreateSandbox;
  /** The request, which a repetition with the same key has to equal; `wanted` when absent. */
  readonly asked?: unknown;
}

/** Makes sandboxes for the clients of a surface: one for all requests with the same `Idempotency-Key`. */
export class ClientCreations {
  readonly #keyed: IdempotentCreations;

  constructor(options: IdempotentCreationsOptions) {
    this.#keyed = new IdempotentCreations(options);
  }

  /**
   * Without a key the sandbox ends when its client leaves before the answer: no other client knows its id.
   * @throws SandboxError invalid_argument for an invalid key, as `IdempotentCreations.create` and `createSandbox`.
   */
  async create(ctx: CreationContext, { own, wanted, asked = wanted }: ClientCreation): Promise<LiveSandbox> {
    const key = parseIdempotencyKey(ctx.req.headers["idempotency-key"]);
    const sandbox =
      key === undefined
        ? await createSandbox(own, wanted, { request: requestOf(ctx), response: ctx.res })
        : await this.#keyed.create(own, { tenant: tenantOf(ctx), key, wanted, asked });
    noteSandbox(ctx, sandbox.record.id);
    return sandbox;
  }
}
