import { noteEvent, type ExecutionEvent } from "./execution-event.js";

/**
 * Passes an execution's output up to a number of bytes, then reports once on stderr that the rest is missing. Its end
 * is always passed. A piece of output is shown whole or not at all.
 */
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
    leftBytes -= sizeOf(event);
    yield leftBytes >= 0
      ? event
      : noteEvent(`\n[output truncated: this execution wrote more than ${maxOutputBytes} bytes]\n`);
  }
}

function sizeOf(event: Extract<ExecutionEvent, { type: "stdout" | "stderr" | "result" }>): number {
  if (event.type !== "result") return event.text.bytes.length;
  let size = 0;
  for (const value of event.data.values()) size += value.bytes.length;
  return size;
}
