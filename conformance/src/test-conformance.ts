import { after, before, describe, it } from "node:test";
import { messageOf } from "@coppice/core";
import type { ConformanceCase, ConformanceSubject } from "./kit/conformance-case.js";
import { conformanceCases } from "./conformance-cases.js";
import { runCase, warmUp } from "./run-case.js";

export interface TestConformanceOptions {
  /** Cases to run; all when absent. */
  readonly cases?: readonly ConformanceCase[];
}

/** Registers cases with node:test under one `describe`: a test with its own sandbox for each. */
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
      // Also when only some of the cases run.
      if (failure !== undefined) throw failure;
    });
    // When `before` throws, Node cancels all tests and shows the reason last.
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
