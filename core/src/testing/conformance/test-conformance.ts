import { after, before, describe, it } from "node:test";
import { messageOf } from "../../kernel/errors.js";
import type { ConformanceCase, ConformanceSubject } from "./kit/conformance-case.js";
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
  describe(`${name} keeps the promises of a backend`, { concurrency: 1 }, () => {
    let subject: ConformanceSubject | undefined;
    let failure: Error | undefined;
    before(async () => {
      try {
        subject = await makeSubject();
        await subject.backend.check();
        await warmUp(subject);
      } catch (error) {
        failure = error instanceof Error ? error : new Error(messageOf(error));
      }
    });
    after(async () => {
      await subject?.[Symbol.asyncDispose]();
      // Also where only some of the cases were to be run.
      if (failure !== undefined) throw failure;
    });
    // Node would cancel all of them when `before` throws, and tell the reason last.
    it("provision: this host can run it, and its first sandbox works", () => {
      if (failure !== undefined) throw failure;
    });
    for (const each of cases) {
      it(`${each.group}: ${each.name}`, async (context) => {
        if (subject === undefined || failure !== undefined) {
          context.skip(`not tried: ${messageOf(failure)}`);
          return;
        }
        const { outcome, error, reason } = await runCase(each, subject);
        if (outcome === "failed") throw error;
        if (outcome === "skipped") context.skip(reason);
      });
    }
  });
}
