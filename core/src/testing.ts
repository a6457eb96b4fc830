import "./http/messages/native-base64.js";

export { startTestServer, type TestServer, type TestServerOptions } from "./testing/start-test-server.js";
export { fakeClock, type FakeClock } from "./testing/fake-clock.js";
export {
  MemoryBackend,
  memoryBackend,
  MemorySandbox,
  type Alive,
  type MemoryBackendOptions,
  type MemoryBackendPlugin,
  type PortHandler,
  type ProvisionStep,
} from "./testing/memory-backend.js";
export { MemoryLeases } from "./testing/memory-leases.js";
export { MemoryFiles } from "./testing/memory-files.js";
export type { Program, ScriptedProcess } from "./testing/memory-process.js";
export { SeededRandom } from "./testing/seeded-random.js";
export { runConformance, type ConformOptions } from "./testing/conform.js";
export {
  CaseSkipped,
  type Ability,
  type ConformanceCase,
  type ConformanceGroup,
  type ConformanceSubject,
  type Facet,
  type Need,
} from "./testing/conformance/kit/conformance-case.js";
export { conformanceCases } from "./testing/conformance/conformance-cases.js";
export type {
  Canary,
  ConformanceContext,
  Finished,
  ScriptOptions,
  StartOptions,
} from "./testing/conformance/kit/conformance-context.js";
export { runCase, type ConformanceResult } from "./testing/conformance/run-case.js";
export { testConformance, type TestConformanceOptions } from "./testing/conformance/test-conformance.js";
