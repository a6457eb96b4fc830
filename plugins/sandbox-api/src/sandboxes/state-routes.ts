import { parseSandboxId, readJsonBody, type Router, SandboxError, type Sandboxes } from "@coppice/core";
import { z } from "zod";
import { networkBody, toNetworkPolicy } from "../bodies/network-policy.js";
import {
  limitFields,
  requestedLimits,
  LEGACY_TIMEOUT_MS,
  requestedTimeoutMs,
  timeoutFields,
} from "../bodies/requested-limits.js";
import { limitsBody, sandboxBody } from "../bodies/sandbox-body.js";
import type { ApiServices, Context } from "./api-services.js";

/** False: a pause ends the processes and keeps the files, and a resumption starts again with the files alone. */
const memory = z.boolean().nullish();

const pauseBody = z.object({ memory });
const resumeBody = z.object({ ...timeoutFields, memory });
const timeoutBody = z.object(timeoutFields);
const refreshBody = z.object({ duration: z.int().min(0).max(3600).nullish() });
const limitsChangeBody = z.object(limitFields);

interface Change<Body> {
  readonly ctx: Context;
  /** The sandboxes of the client's tenant. */
  readonly own: Sandboxes;
  readonly id: string;
  readonly body: Body;
}

/** Routes that change a sandbox, or end it. @param ownRouter gets the route that is not part of E2B. */
export function mountStateChanges(
  router: Router,
  ownRouter: Router,
  { config, domain, capacities, sandboxes }: ApiServices,
): void {
  const required = { limitBytes: config.maxBody };
  const optional = { ...required, empty: {} };

  /** Serves a change by its body. The answer is 204, unless the change sets another. */
  const change =
    <S extends z.ZodType>(
      schema: S,
      options: typeof required,
      run: (change: Change<z.infer<S>>) => Promise<void>,
    ) =>
    async (ctx: Context) => {
      const id = parseSandboxId(ctx.params["id"]);
      const body = await readJsonBody(ctx.req, schema, options);
      ctx.status = 204;
      await run({ ctx, own: sandboxes(ctx), id, body });
    };

  /** Resumes a paused sandbox, and extends the life of a running one. @param usualMs undefined = required. */
  const connect = async ({ ctx, own, id, body }: Change<z.infer<typeof resumeBody>>, usualMs?: number) => {
    const timeoutMs = requestedTimeoutMs(body) ?? usualMs ?? missingTimeout();
    // Before the sandbox is looked for, as at E2B: 400, not 404.
    own.checkTimeout(timeoutMs);
    const wasPaused = await own.resume(id, timeoutMs, { keepsMemory: body.memory ?? true });
    if (!wasPaused) await own.extend(id, timeoutMs);
    ctx.status = wasPaused ? 201 : 200;
    ctx.body = sandboxBody(own.get(id), { carrier: ctx, domain: domain() });
  };

  router.post("/sandboxes/:id/connect", change(resumeBody, optional, connect));

  router.post(
    "/v2/sandboxes/:id/connect",
    change(resumeBody, optional, (wanted) => connect(wanted, wanted.own.defaultTimeoutMs)),
  );

  router.post(
    "/sandboxes/:id/pause",
    change(pauseBody, optional, ({ own, id, body }) => own.pause(id, { keepsMemory: body.memory ?? true })),
  );

  // For clients from before `connect`.
  router.post(
    "/sandboxes/:id/resume",
    change(resumeBody, optional, async ({ ctx, own, id, body }) => {
      const timeoutMs = requestedTimeoutMs(body) ?? LEGACY_TIMEOUT_MS;
      const wasPaused = await own.resume(id, timeoutMs, { keepsMemory: body.memory ?? true });
      if (!wasPaused) throw new SandboxError("sandbox_state_conflict", `Sandbox ${id} is already running`);
      ctx.status = 201;
      ctx.body = sandboxBody(own.get(id), { carrier: ctx, domain: domain() });
    }),
  );

  router.delete("/sandboxes/:id", async (ctx) => {
    await sandboxes(ctx).kill(parseSandboxId(ctx.params["id"]));
    ctx.status = 204;
  });

  // Moves the end, nearer too; 0 or less ends it now.
  router.post(
    "/sandboxes/:id/timeout",
    change(timeoutBody, required, ({ own, id, body }) =>
      own.setTimeout(id, Math.max(requestedTimeoutMs(body) ?? missingTimeout(), 0)),
    ),
  );

  router.post(
    "/sandboxes/:id/refreshes",
    change(refreshBody, optional, ({ own, id, body }) =>
      own.extend(id, Math.max((body.duration ?? 0) * 1000, LEGACY_TIMEOUT_MS)),
    ),
  );

  router.put(
    "/sandboxes/:id/network",
    change(networkBody({ networkRuleLimit: config.maxNetworkRules }), required, ({ own, id, body }) =>
      own.setNetworkPolicy(id, toNetworkPolicy(body)),
    ),
  );

  ownRouter.patch(
    "/sandboxes/:id/limits",
    change(limitsChangeBody, required, async ({ ctx, own, id, body }) => {
      const limits = requestedLimits(body);
      if (Object.values(limits).every((limit) => limit === undefined)) {
        const text = "validation error: expected cpuCount, memoryMB or diskSizeMB";
        throw new SandboxError("request_invalid", text);
      }
      await own.setLimits(id, limits);
      ctx.status = 200;
      ctx.body = limitsBody(id, await capacities.of(own.get(id)));
    }),
  );
}

function missingTimeout(): never {
  throw new SandboxError("timeout_invalid", "validation error: timeout: it is required");
}
