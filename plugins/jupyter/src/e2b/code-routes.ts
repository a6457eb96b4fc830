import {
  HttpError,
  messageOf,
  requestOf,
  SandboxError,
  targetOf,
  type Clock,
  type Router,
} from "@coppice/core";
import { contextBody, executeBody, readCodeBody } from "./code-body.js";
import type { CodeContext } from "../contexts/code-context.js";
import type { CodeContexts } from "../contexts/code-contexts.js";
import { streamExecution } from "./execution-stream.js";

/** The contexts of E2B's sandboxes begin with these two. */
const ALWAYS_LISTED = ["python", "javascript"];

interface CodeRoutesOptions {
  readonly contexts: CodeContexts;
  readonly clock: Clock;
  readonly keepaliveMs: number;
  readonly maxCodeBytes: number;
}

/** The HTTP interface of E2B's code interpreter, which both of its SDKs use. */
export function mountCode(
  router: Router,
  { contexts, clock, keepaliveMs, maxCodeBytes }: CodeRoutesOptions,
): void {
  router.get("/health", (ctx) => {
    ctx.type = "application/json";
    ctx.body = '"OK"';
  });

  router.post("/execute", async (ctx) => {
    const { signal } = requestOf(ctx);
    const sandbox = await contexts.of(targetOf(ctx));
    const body = await readCodeBody(ctx.req, executeBody, maxCodeBytes);
    if (body.context_id && body.language) {
      const text = "Only one of context_id or language can be provided";
      throw new HttpError(400, text, { reason: "request_invalid", body: text });
    }
    const context = await creating(async () =>
      body.context_id ? sandbox.get(body.context_id) : sandbox.defaultFor(body.language ?? undefined),
    );
    using _place = slotIn(context);
    // Before the headers, because a context that does not start has its own status.
    await creating(() => context.ready());
    const execution = { code: body.code.toWellFormed(), variables: body.env_vars ?? {} };
    ctx.respond = false;
    await streamExecution(ctx.res, context.execute(execution, signal), { clock, keepaliveMs, signal });
  });

  router.post("/contexts", async (ctx) => {
    const sandbox = await contexts.of(targetOf(ctx));
    const { language, cwd } = await readCodeBody(ctx.req, contextBody, maxCodeBytes);
    const context = await creating(() =>
      sandbox.create({ language: language ?? undefined, cwd: cwd ?? undefined }),
    );
    ctx.body = view(context);
  });

  router.get("/contexts", async (ctx) => {
    ctx.body = (await (await contexts.of(targetOf(ctx))).list(ALWAYS_LISTED)).map(view);
  });

  router.post("/contexts/:id/restart", async (ctx) => {
    const sandbox = await contexts.of(targetOf(ctx));
    const context = await creating(async () => sandbox.get(ctx.params["id"] ?? ""));
    try {
      await context.restart();
    } catch (error) {
      requestOf(ctx).log.warn({ err: error, context: context.id }, "context did not restart");
      const text = `Failed to restart context ${context.id}`;
      throw new HttpError(500, messageOf(error), { reason: "kernel_start_failed", body: text });
    }
    sendNull(ctx);
  });

  router.delete("/contexts/:id", async (ctx) => {
    const sandbox = await contexts.of(targetOf(ctx));
    const { id } = await creating(async () => sandbox.get(ctx.params["id"] ?? ""));
    await sandbox.remove(id);
    sendNull(ctx);
  });
}

/** Refuses in plain text, like all errors here. */
function slotIn(context: CodeContext): Disposable {
  try {
    return context.reserveSlot();
  } catch (error) {
    throw new HttpError(429, messageOf(error), { reason: "execution_limit_reached", body: messageOf(error) });
  }
}

function view({ id, language, cwd }: CodeContext): object {
  return { id, language, cwd };
}

// Koa takes a null body for "no content".
function sendNull(ctx: { type: string; body: unknown }): void {
  ctx.type = "application/json";
  ctx.body = "null";
}

/** Answers E2B's plain text when there is no such context, or none can be made. */
async function creating<T>(create: () => Promise<T>): Promise<T> {
  try {
    return await create();
  } catch (error) {
    throw asText(error);
  }
}

const CREATION_STATUS = new Map([
  ["unimplemented", 500],
  ["failed_precondition", 500],
  ["invalid_argument", 400],
  ["resource_exhausted", 429],
]);

function asText(error: unknown): unknown {
  if (!(error instanceof SandboxError)) return error;
  const { code, reason, message } = error;
  if (code === "not_found") return new HttpError(404, message, { reason, body: message });
  const status = CREATION_STATUS.get(code);
  if (status === undefined) return error;
  return new HttpError(status, message, { reason, body: `Failed to create context: ${message}` });
}
