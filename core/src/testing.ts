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
export { MemoryFiles } from "./testing/memory-files.js";
export type { Program, ScriptedProcess } from "./testing/memory-process.js";
