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
} from "./sandbox/contract/egress-rules.js";
export { describeExit, type ExitReport, exitCodeOf, exitText } from "./sandbox/contract/exit-report.js";
export * from "./sandbox/contract/files.js";
export { type FullLimits, fullLimits } from "./sandbox/contract/full-limits.js";
export * from "./sandbox/contract/process.js";
export { MOST_WRITES, runToEnd, type RunToEnd } from "./sandbox/contract/run-to-end.js";
export { MEBIBYTE } from "./config/units.js";
export { addressList } from "./kernel/address-list.js";
export { readAtOnce } from "./sandbox/backends/read-at-once.js";
export { replaceFile } from "./kernel/replace-file.js";
export { Semaphore } from "./bounds/semaphore.js";
export { sharedUntilFailure } from "./kernel/shared-until-failure.js";
export { ignoring, SandboxError, type Shortage } from "./kernel/errors.js";
export * from "./kernel/reasons.js";
export { prepareLayout } from "./sandbox/backends/prepare-layout.js";
export { imageTooLarge } from "./sandbox/backends/image-too-large.js";
export { unpackArguments, unpackCpuSeconds, unpackFailure } from "./sandbox/backends/umoci.js";
