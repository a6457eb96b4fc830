import { posix } from "node:path";
import { type Clock, type LiveSandbox, SandboxError } from "@coppice/core";
import type {
  CodeInterpreter,
  ExecutionEvent,
  InterpreterContext,
  SandboxInterpreter,
} from "@coppice/plugin-jupyter";
import { z } from "zod";
import { translated } from "../files/file-errors.js";
import { pathField } from "../files/session-path.js";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import { ShellError, type ShellErrorCode } from "../shell/shell-error.js";
import {
  event,
  inputOf,
  type ShellAnswer,
  type ShellRequest,
  type ShellRoute,
  success,
  timeout,
  variables,
} from "../wire/route.js";
import { errorAnswer } from "../wire/shell-errors.js";

const language = z.string().max(100);
const environment = variables.refine(
  (all) => Object.entries(all).every(([name, value]) => /^[A-Za-z_]\w*$/.test(name) && !value.includes("\0")),
  "a variable has no such name, or a NUL byte",
);
const contextBody = z.object({
  language: language.nullish(),
  cwd: pathField.nullish(),
  env_vars: environment.nullish(),
});
const codeBody = z.object({
  context_id: z.string().max(256).nullish(),
  code: z.string(),
  language: language.nullish(),
  timeout_ms: timeout.nullish(),
  env_vars: environment.nullish(),
});

const DEFAULT_LANGUAGE = "python";

interface InterpreterRoutesOptions {
  /** Undefined where no plugin runs code. */
  readonly interpreter: CodeInterpreter | undefined;
  readonly config: Pick<ShellSessionsConfig, "workdir">;
  readonly clock: Clock;
}

/** Code in contexts, which other interfaces share. */
export function interpreterRoutes(options: InterpreterRoutesOptions): readonly ShellRoute[] {
  const { interpreter, config } = options;
  /** Variables of contexts that were made here. */
  const variablesOf: ContextVariables = new WeakMap();
  const of = async (sandbox: LiveSandbox, asked: string): Promise<SandboxInterpreter> => {
    if (interpreter === undefined) throw notAvailable(asked, "This server has no code interpreter");
    return await interpreter.of(sandbox);
  };
  return [
    {
      method: "GET",
      path: "/api/interpreter/health",
      async handle({ sandbox }) {
        await of(sandbox, DEFAULT_LANGUAGE);
        return success({ status: "healthy" });
      },
    },
    {
      method: "POST",
      path: "/api/contexts",
      async handle({ sandbox, body }) {
        const input = inputOf(contextBody, body);
        const asked = input.language || DEFAULT_LANGUAGE;
        const contexts = await of(sandbox, asked);
        const cwd = posix.resolve(config.workdir, input.cwd ?? "");
        const { kind } = await translated(cwd, sandbox.runtime.files.stat(cwd));
        if (kind !== "directory")
          throw new ShellError("NOT_DIRECTORY", `Not a directory: ${cwd}`, { path: cwd });
        const context = await interpreted(asked, () => contexts.create({ language: asked, cwd }));
        variablesOf.set(context, input.env_vars ?? {});
        return success({ contextId: context.id, language: context.language, cwd: context.cwd });
      },
    },
    {
      method: "GET",
      path: "/api/contexts",
      async handle({ sandbox }) {
        const listed = await (await of(sandbox, DEFAULT_LANGUAGE)).list();
        return success({
          contexts: listed.map(({ id, language: spoken, cwd }) => ({ id, language: spoken, cwd })),
        });
      },
    },
    {
      method: "DELETE",
      path: "/api/contexts/:id",
      async handle({ sandbox, params: { id = "" } }) {
        const contexts = await of(sandbox, DEFAULT_LANGUAGE);
        await interpreted(DEFAULT_LANGUAGE, () => contexts.remove(id));
        return success({ contextId: id });
      },
    },
    {
      method: "POST",
      path: "/api/execute/code",
      async handle(request) {
        try {
          const input = inputOf(codeBody, request.body);
          const contexts = await of(request.sandbox, input.language ?? DEFAULT_LANGUAGE);
          return await execute(request, { ...options, contexts, variablesOf, input });
        } catch (error) {
          return executionFailure(error, request);
        }
      },
    },
  ];
}

type ContextVariables = WeakMap<InterpreterContext, Readonly<Record<string, string>>>;

interface ExecuteOptions {
  readonly contexts: SandboxInterpreter;
  readonly variablesOf: ContextVariables;
  readonly input: z.infer<typeof codeBody>;
  readonly clock: Clock;
}

async function execute(
  { signal }: ShellRequest,
  { contexts, variablesOf, input, clock }: ExecuteOptions,
): Promise<ShellAnswer> {
  const { context_id: id, language: asked, code, timeout_ms: timeoutMs, env_vars: own } = input;
  return await interpreted(asked ?? DEFAULT_LANGUAGE, async () => {
    // Clients send the language of the context as well.
    const context = id ? contexts.get(id) : await contexts.defaultFor(asked ?? undefined);
    signal.throwIfAborted();
    const release = placeIn(context);
    // The events of a client that has left are not read at all.
    signal.addEventListener("abort", release, { once: true });
    try {
      await context.ready();
    } catch (error) {
      release();
      throw error;
    }
    const events = executionEvents({
      context,
      code: code.toWellFormed(),
      variables: { ...variablesOf.get(context), ...own },
      timeoutMs: timeoutMs ?? undefined,
      clock,
      signal,
    });
    return { events: released(events, release) };
  });
}

/** @returns gives the place back, once. @throws SandboxError when there is none. */
function placeIn(context: InterpreterContext): () => void {
  let place: Disposable | undefined = context.reserveSlot();
  return () => {
    place?.[Symbol.dispose]();
    place = undefined;
  };
}

async function* released<T>(source: AsyncIterable<T>, release: () => void): AsyncGenerator<T> {
  try {
    yield* source;
  } finally {
    release();
  }
}

interface Execution {
  readonly context: InterpreterContext;
  readonly code: string;
  readonly variables: Readonly<Record<string, string>>;
  readonly timeoutMs: number | undefined;
  readonly clock: Clock;
  readonly signal: AbortSignal;
}

type Event = ReturnType<typeof event>;

/** Fields of a result, by the type of its data. */
const FIELDS: ReadonlyMap<string, string> = new Map([
  ["text/plain", "text"],
  ["text/html", "html"],
  ["image/png", "png"],
  ["image/jpeg", "jpeg"],
  ["image/svg+xml", "svg"],
  ["text/latex", "latex"],
  ["text/markdown", "markdown"],
  ["application/javascript", "javascript"],
  ["application/json", "json"],
]);

/** What happens while code runs, to its end. Code whose time is over is interrupted. */
async function* executionEvents(execution: Execution): AsyncGenerator<Event> {
  const { context, code, variables, timeoutMs, clock, signal } = execution;
  const expiry = new AbortController();
  const cancel = timeoutMs === undefined ? () => undefined : clock.after(timeoutMs, () => expiry.abort());
  let count: number | undefined;
  try {
    const until = AbortSignal.any([signal, expiry.signal]);
    for await (const each of context.execute({ code, variables }, until)) {
      if (each.type === "number_of_executions") count = each.executionCount;
      else yield clientEvent(each);
    }
  } finally {
    cancel();
  }
  if (expiry.signal.aborted) {
    const evalue = `Execution timed out after ${timeoutMs} ms`;
    yield event("error", { ename: "TimeoutError", evalue, traceback: [] });
  }
  yield event("execution_complete", { execution_count: count ?? null });
}

function clientEvent(each: Exclude<ExecutionEvent, { readonly type: "number_of_executions" }>): Event {
  if (each.type === "error") {
    const { name: ename, value: evalue, traceback } = each;
    return event("error", { ename, evalue, traceback });
  }
  if (each.type !== "result") return event(each.type, { text: valueOf(each.text) });
  const fields = [...each.data].flatMap(([type, json]) => {
    const field = FIELDS.get(type);
    return field === undefined ? [] : [[field, valueOf(json)] as const];
  });
  return event("result", { ...Object.fromEntries(fields), metadata: {} });
}

function valueOf(json: Buffer): unknown {
  return JSON.parse(json.toString()) as unknown;
}

const JAVASCRIPT: ReadonlySet<string> = new Set(["javascript", "js", "typescript", "ts"]);

/** Says that a language has no interpreter here. The status is none that clients try again for. */
function notAvailable(language: string, why: string): ShellError {
  const name = language.trim().toLowerCase();
  const code: ShellErrorCode = JAVASCRIPT.has(name) ? "JAVASCRIPT_NOT_AVAILABLE" : "PYTHON_NOT_AVAILABLE";
  return new ShellError(code, why, { language });
}

/** @throws ShellError for what the interpreter refuses. */
async function interpreted<T>(language: string, operation: () => Promise<T>): Promise<T> {
  try {
    return await operation();
  } catch (error) {
    throw interpreterError(error, language);
  }
}

function interpreterError(error: unknown, language: string): unknown {
  if (!(error instanceof SandboxError)) return error;
  if (error.reason === "context_not_found") return new ShellError("CONTEXT_NOT_FOUND", error.message);
  if (error.reason === "kernel_start_failed") return notAvailable(language, error.message);
  if (error.reason === "template_has_no_kernel") {
    return new ShellError("VALIDATION_FAILED", `There is no interpreter for '${language}'`, { language });
  }
  return error;
}

/** The answer to a failed execution: the interface's form, and that of older clients, `{ error, code, details }`. */
function executionFailure(error: unknown, { log }: Pick<ShellRequest, "log">): ShellAnswer {
  const { status, body } = errorAnswer(error, log);
  return { json: { ...body, error: body["message"], details: body["context"] }, status };
}
