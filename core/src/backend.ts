import "./kernel/one-core.js";
export { AddressLeases, type NetworkLeases } from "./sandbox/contract/address-leases.js";
export * from "./sandbox/contract/backend.js";
export * from "./sandbox/contract/file-system-error.js";
export {
  ALL_TRAFFIC,
  type EgressRules,
  egressRulesOf,
  isAddressRange,
  type NetworkPolicy,
  NOT_PUBLIC_IPV4,
  addressList,
} from "./sandbox/contract/egress-rules.js";
export { describeExit, type ExitReport, exitCodeOf, exitText } from "./sandbox/contract/exit-report.js";
export * from "./sandbox/contract/files.js";
export { type FullLimits, fullLimits } from "./sandbox/contract/full-limits.js";
export * from "./sandbox/contract/process.js";
export { MOST_WRITES, runToEnd, type RunToEnd } from "./sandbox/contract/run-to-end.js";
export { MEBIBYTE } from "./config/units.js";
export { readAtOnce, replaceFile } from "./kernel/files.js";
export { Semaphore, sharedUntilFailure } from "./bounds/semaphore.js";
export { ignoring, SandboxError, type Shortage } from "./kernel/errors.js";
export * from "./kernel/reasons.js";
export {
  prepareLayout,
  imageTooLarge,
  unpackArguments,
  unpackCpuSeconds,
  unpackFailure,
} from "./sandbox/backends/images.js";
