export * from "./sandbox/backend.js";
export * from "./sandbox/file-system-error.js";
export {
  ALL_TRAFFIC,
  type EgressRules,
  egressRulesOf,
  isAddressRange,
  NOT_PUBLIC_IPV4,
} from "./sandbox/egress-rules.js";
export * from "./sandbox/files.js";
export { type FullLimits, fullLimits } from "./sandbox/full-limits.js";
export * from "./sandbox/process.js";
export { sharedUntilFailure } from "./kernel/shared-until-failure.js";
export { SandboxError, type ErrorCode, type Shortage } from "./kernel/errors.js";
