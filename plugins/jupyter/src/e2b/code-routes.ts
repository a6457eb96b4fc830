import {
  fulfilledWithin,
  HttpError,
  messageOf,
  requestOf,
  SandboxError,
  targetOf,
  type Clock,
  type Router,
  readJsonText,
} from "@coppice/core";
import type { CodeContext } from "../contexts/code-context.js";
import type { CodeContexts } from "../contexts/code-contexts.js";
import { streamExecution } from "./execution-stream.js";
import type { IncomingMessage } from "node:http";
import { z } from "zod";
import { REASONS } from "../reasons.js";

const EnvironmentName = z
  .string()
  .regex(/^[^=\0]+$/, "Name should be neither empty nor contain '=' or a NUL");
const EnvironmentValue = z
  .string()
  .refine(
    (value) => !value.includes("\0") && value.isWellFormed(),
    "Value should be a valid string without a NUL",
  );

/** `POST /execute`. The Python SDK sends null for absent values. */
const executeBody = z.object({
  code: z.string(),
  context_id: z.string().nullish(),
  language: z.string().nullish(),
  env_vars: z.record(EnvironmentName, EnvironmentValue).nullish(),
});

/** `POST /contexts`. */
const contextBody = z.object({ language: z.string().nullish(), cwd: z.string().nullish() });

/** Reads a JSON body as E2B's server does. @throws HttpError 422 with `{"detail": [...]}`, 413 past the limit. */
async function readCodeBody<S extends z.ZodType>(
  message: IncomingMessage,
  schema: S,
  limitBytes: number,
): Promise<z.infer<S>> {
  let value: unknown;
  try {
    value = JSON.parse((await readJsonText(message, limitBytes)).toString("utf8"));
  } catch (error) {
    // Very many values are told as what is no JSON.
    if (error instanceof SandboxError && error.reason !== "request_invalid") throw error;
    throw unprocessable([
      {
        type: "json_invalid",
        loc: ["body", 0],
        msg: "JSON decode error",
        input: {},
        ctx: { error: (error as Error).message },
      },
    ]);
  }
  const parsed = schema.safeParse(value, { reportInput: true });
  if (parsed.success) return parsed.data;
  throw unprocessable(
    parsed.error.issues.map((issue) => {
      const isMissing = issue.code === "invalid_type" && issue.input === undefined;
      const type = issue.code === "invalid_type" ? `${issue.expected}_type` : "value_error";
      return {
        type: isMissing ? "missing" : type,
        loc: ["body", ...issue.path],
        msg: isMissing ? "Field required" : issue.message,
        input: isMissing || issue.path.length === 0 ? {} : issue.input,
      };
    }),
  );
}

function unprocessable(detail: readonly unknown[]): HttpError {
  return new HttpError(422, "the request body is not valid", { reason: "request_invalid", body: { detail } });
}

/** The contexts of E2B's sandboxes begin with these two. */
const ALWAYS_LISTED = ["python", "javascript"];

/** Time after which the head of an answer is sent although the kernel is not ready. */
const HEAD_AFTER_MS = 1000;

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
    ).catch((error: unknown) => {
      requestOf(ctx).log.info({ reason: messageOf(error) }, "code was refused");
      throw error;
    });
    using _place = slotIn(context);
    // A context that fails at once has its own status. A slow one fails in the stream: only a client that has the head
    // can tell a sandbox that ends meanwhile from a server that cannot be reached.
    await creating(() => fulfilledWithin(context.ready(), { clock, timeoutMs: HEAD_AFTER_MS }));
    const execution = { code: body.code.toWellFormed(), variables: body.env_vars ?? {} };
    ctx.respond = false;
    const options = { sender: targetOf(ctx), clock, keepaliveMs, message: ctx.req, signal };
    await streamExecution(ctx.res, context.execute(execution, signal), options);
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
      throw new HttpError(500, messageOf(error), { reason: REASONS.kernel_start_failed, body: text });
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
  ["permission_denied", 403],
  ["resource_exhausted", 429],
]);

function asText(error: unknown): unknown {
  if (!(error instanceof SandboxError)) return error;
  const { code, message } = error;
  if (code === "not_found") return new HttpError(404, message, { reason: error, body: message });
  const status = CREATION_STATUS.get(code);
  if (status === undefined) return error;
  return new HttpError(status, message, { reason: error, body: `Failed to create context: ${message}` });
}
