export * from "./sandbox/backend.js";
export * from "./sandbox/file-system-error.js";
export * from "./sandbox/files.js";
export * from "./sandbox/process.js";
export { SandboxError, type ErrorCode } from "./kernel/errors.js";
