import { accountCases } from "./account-cases.js";
import type { ConformanceCase } from "./conformance-case.js";
import { containmentCases } from "./containment-cases.js";
import { facetCases } from "./facet-cases.js";
import { fileCases } from "./file-cases.js";
import { isolationCases } from "./isolation-cases.js";
import { kernelCountCases } from "./kernel-count-cases.js";
import { lossCases } from "./loss-cases.js";
import { metadataCases } from "./metadata-cases.js";
import { networkCases } from "./network-cases.js";
import { networkingCases } from "./networking-cases.js";
import { processCases } from "./process-cases.js";
import { provisionCases } from "./provision-cases.js";
import { snapshotCases } from "./snapshot-cases.js";
import { stoppingCases } from "./stopping-cases.js";
import { terminalCases } from "./terminal-cases.js";
import { volumeCases } from "./volume-cases.js";
import { watchCases } from "./watch-cases.js";

/** Every promise that a backend makes, in the order in which they are best understood. */
export const conformanceCases: readonly ConformanceCase[] = [
  ...provisionCases,
  ...processCases,
  ...terminalCases,
  ...fileCases,
  ...metadataCases,
  ...accountCases,
  ...watchCases,
  ...networkCases,
  ...facetCases,
  ...stoppingCases,
  ...lossCases,
  ...networkingCases,
  ...snapshotCases,
  ...volumeCases,
  ...isolationCases,
  ...containmentCases,
  ...kernelCountCases,
];
