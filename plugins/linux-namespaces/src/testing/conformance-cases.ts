// The conformance suite for an ordinary user, run as one by `ordinary-user.test.ts`.
import {
  type ConformanceCase,
  type ConformanceSubject,
  conformanceCases,
  type Need,
  testConformance,
} from "@coppice/conformance";
import { openInternet, reasonWithoutEgress } from "./open-internet.js";
import { hasAccounts, wholeLimits, isOnDisk, openTestBackend } from "./test-backend.js";

/** By hand all of them. */
const ALL_VARIANTS = process.env["COPPICE_TEST_VARIANTS"] === "all";

/**
 * True for what depends on the user of the server: accounts and owners, limits, mounts, networks, images, and how a
 * sandbox begins and ends. Other programs, terminals and files inside are work of the same agent as in the suite of root.
 */
function isAboutUser({ group, name, needs = [] }: ConformanceCase): boolean {
  if (group !== "process" && group !== "terminal" && group !== "files") return true;
  const isNeeded = needs.some((need) => need === "accounts" || need === "metadata" || isLimit(need));
  return isNeeded || /\b(?:user|owner|mode|leads?)\b/.test(name);
}

function isLimit(need: Need): boolean {
  return typeof need === "object" && "limit" in need;
}

const cases = ALL_VARIANTS ? conformanceCases : conformanceCases.filter(isAboutUser);

const makeSubject = async (): Promise<ConformanceSubject> => {
  const hasInternet = reasonWithoutEgress() === undefined;
  const internet = hasInternet ? await openInternet() : undefined;
  const opened = await openTestBackend(internet && { egress: "nat", egressRange: internet.egressRange });
  const held = await wholeLimits(opened.backend);
  const isKept = await isOnDisk(opened.backend);
  const limits = (["memoryMiB", "processes", "cpuCount"] as const).filter((name) => held.has(name));
  return {
    ...opened,
    facets: [
      "volumes",
      "lost",
      ...(internet === undefined ? [] : (["networking"] as const)),
      ...(isKept ? (["stopping"] as const) : []),
      ...((await hasAccounts(opened.backend)) ? (["images"] as const) : []),
      ...((await hasAccounts(opened.backend)) && isKept ? (["committing"] as const) : []),
      ...(held.has("pausing") ? (["pausing"] as const) : []),
      ...(held.has("memoryMiB") && held.has("cpuCount") ? (["resizing"] as const) : []),
    ],
    abilities: [
      "terminals",
      "watching",
      "metadata",
      ...((await hasAccounts(opened.backend)) ? (["accounts"] as const) : []),
    ],
    limits: [...limits, "diskMiB"],
    stateDirectory: opened.directory,
    ...(internet !== undefined && { outside: internet }),
  };
};

testConformance("linux-namespaces without root", makeSubject, { cases });
