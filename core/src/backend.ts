export * from "./sandbox/contract/backend.js";
export * from "./sandbox/contract/file-system-error.js";
export {
  ALL_TRAFFIC,
  type EgressRules,
  egressRulesOf,
  isAddressRange,
  NOT_PUBLIC_IPV4,
} from "./sandbox/contract/egress-rules.js";
export * from "./sandbox/contract/files.js";
export { type FullLimits, fullLimits } from "./sandbox/contract/full-limits.js";
export * from "./sandbox/contract/process.js";
export { addressList } from "./kernel/address-list.js";
export { replaceFile } from "./kernel/replace-file.js";
export { Semaphore } from "./kernel/semaphore.js";
export { sharedUntilFailure } from "./kernel/shared-until-failure.js";
export { SandboxError, type Shortage } from "./kernel/errors.js";
export * from "./kernel/reasons.js";
export { prepareLayout } from "./sandbox/backends/prepare-layout.js";
export { imageTooLarge, unpackArguments, unpackCpuSeconds, unpackFailure } from "./sandbox/backends/umoci.js";
