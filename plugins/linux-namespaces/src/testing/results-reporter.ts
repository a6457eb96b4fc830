// A reporter for node:test: each test that has ended is a line of JSON.
import type { TestEvent } from "node:test/reporters";

/** A test that has ended. */
export interface TestResult {
  readonly name: string;
  readonly failure?: string | undefined;
  /** Why it was skipped. */
  readonly skipped?: string | undefined;
}

export default async function* results(events: AsyncIterable<TestEvent>): AsyncGenerator<string> {
  for await (const event of events) {
    if (event.type !== "test:pass" && event.type !== "test:fail") continue;
    const { name, skip, details } = event.data;
    if (details.type === "suite") continue;
    const failure = "error" in details ? details.error : undefined;
    const result: TestResult = {
      name,
      ...(failure !== undefined && { failure: String(failure.cause ?? failure) }),
      ...(skip !== undefined && { skipped: String(skip) }),
    };
    yield `${JSON.stringify(result)}\n`;
  }
}
