import { after, before, describe, test } from "node:test";
import type { ConformanceCase, ConformanceSubject } from "./conformance-case.js";
import { conformanceCases } from "./conformance-cases.js";
import { runCase, warmUp } from "./run-case.js";

export interface TestConformanceOptions {
  /** Those that are run; all of them when absent. */
  readonly cases?: readonly ConformanceCase[];
}

/** Registers cases with node:test, under one `describe`. Each is one test with a sandbox of its own. */
export function testConformance(
  name: string,
  makeSubject: () => Promise<ConformanceSubject>,
  { cases = conformanceCases }: TestConformanceOptions = {},
): void {
  void describe(`${name} keeps the promises of a backend`, { concurrency: 1 }, () => {
    let subject: ConformanceSubject;
    before(async () => {
      subject = await makeSubject();
      await subject.backend.check();
      await warmUp(subject);
    });
    after(async () => subject[Symbol.asyncDispose]());
    for (const each of cases) {
      void test(`${each.group}: ${each.name}`, async (context) => {
        const { outcome, error, reason } = await runCase(each, subject);
        if (outcome === "failed") throw error;
        if (outcome === "skipped") context.skip(reason);
      });
    }
  });
}
