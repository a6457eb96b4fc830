// A reporter for node:test that prints each ended test as a line of JSON.
import type { TestEvent } from "node:test/reporters";

export interface TestResult {
  readonly name: string;
  readonly failure?: string | undefined;
  /** Reason for a skip. */
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
