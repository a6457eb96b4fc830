import { noteEvent, type ExecutionEvent } from "./execution-event.js";

/** Passes whole pieces of output up to a limit, then notes once that the rest is missing. The end always passes. */
export async function* limitOutput(
  events: AsyncIterable<ExecutionEvent>,
  maxOutputBytes: number,
): AsyncGenerator<ExecutionEvent> {
  let leftBytes = maxOutputBytes;
  for await (const event of events) {
    if (event.type === "error" || event.type === "number_of_executions") {
      yield event;
      continue;
    }
    if (leftBytes < 0) continue;
    leftBytes -= outputBytes(event);
    yield leftBytes >= 0
      ? event
      : noteEvent(`\n[output truncated: this execution wrote more than ${maxOutputBytes} bytes]\n`);
  }
}

/** Bytes of output and results. An end has none. */
export function outputBytes(event: ExecutionEvent): number {
  if (event.type === "error" || event.type === "number_of_executions") return 0;
  if (event.type !== "result") return event.text.length;
  let size = 0;
  for (const value of event.data.values()) size += value.length;
  return size;
}
