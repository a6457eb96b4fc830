import type { Clock } from "@coppice/core";
import type { ExecutionEvent, InterpreterContext } from "@coppice/plugin-jupyter";
import { event } from "../wire/route.js";

export interface Execution {
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
export async function* executionEvents(execution: Execution): AsyncGenerator<Event> {
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
