import { accountCases } from "./cases/account-cases.js";
import type { ConformanceCase } from "./kit/conformance-case.js";
import { containmentCases } from "./cases/containment-cases.js";
import { facetCases } from "./cases/facet-cases.js";
import { fileCases } from "./cases/file-cases.js";
import { imageCases } from "./cases/image-cases.js";
import { isolationCases } from "./cases/isolation-cases.js";
import { kernelCountCases } from "./cases/kernel-count-cases.js";
import { lossCases } from "./cases/loss-cases.js";
import { metadataCases } from "./cases/metadata-cases.js";
import { networkCases } from "./cases/network-cases.js";
import { networkingCases } from "./cases/networking-cases.js";
import { packCases } from "./cases/pack-cases.js";
import { processCases } from "./cases/process-cases.js";
import { provisionCases } from "./cases/provision-cases.js";
import { snapshotCases } from "./cases/snapshot-cases.js";
import { stoppingCases } from "./cases/stopping-cases.js";
import { terminalCases } from "./cases/terminal-cases.js";
import { volumeCases } from "./cases/volume-cases.js";
import { watchCases } from "./cases/watch-cases.js";

/** Every promise of a backend, in reading order. */
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
  ...imageCases,
  ...packCases,
  ...isolationCases,
  ...containmentCases,
  ...kernelCountCases,
];
