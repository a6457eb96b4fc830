import { after, before, describe, test } from "node:test";
import type { ConformanceSubject } from "./conformance-case.js";
import { conformanceCases } from "./conformance-cases.js";
import { runCase, warmUp } from "./run-case.js";

/** Registers every case with node:test, under one `describe`. Each is one test with a sandbox of its own. */
export function testConformance(name: string, makeSubject: () => Promise<ConformanceSubject>): void {
  void describe(`${name} keeps the promises of a backend`, { concurrency: 1 }, () => {
    let subject: ConformanceSubject;
    before(async () => {
      subject = await makeSubject();
      await subject.backend.check();
      await warmUp(subject);
    });
    after(async () => subject[Symbol.asyncDispose]());
    for (const each of conformanceCases) {
      void test(`${each.group}: ${each.name}`, async (context) => {
        const { outcome, error, reason } = await runCase(each, subject);
        if (outcome === "failed") throw error;
        if (outcome === "skipped") context.skip(reason);
      });
    }
  });
}
