export { testConformance } from "./test-conformance.js";
export { type ConformOptions, runConformance } from "./run-conformance.js";
export { type ConformanceResult, runCase } from "./run-case.js";
export { conformanceCases } from "./conformance-cases.js";
export * from "./kit/conformance-case.js";
export type {
  Canary,
  ConformanceContext,
  Finished,
  ScriptOptions,
  StartOptions,
} from "./kit/conformance-context.js";
