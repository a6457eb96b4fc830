import "./kernel/one-core.js";
import "./http/messages/native-base64.js";

export * from "./testing/docker-registry.js";
export * from "./testing/start-test-server.js";
export * from "./testing/fake-clock.js";
export type { ServedRoute } from "./http/surfaces/surface.js";
export * from "./testing/free-ports.js";
export * from "./testing/memory-backend.js";
export * from "./testing/memory-files.js";
export type { Program, ScriptedProcess } from "./testing/memory-process.js";
export * from "./testing/seeded-random.js";
export * from "./testing/tar-archive.js";
export * from "./testing/greeting-socket.js";
export * from "./testing/image-layout.js";
export * from "./testing/test-registry.js";
export { createLogger } from "./observe/logger.js";
export * from "./testing/run-verb.js";
