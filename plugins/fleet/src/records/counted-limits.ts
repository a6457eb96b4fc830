import type { Limits } from "@coppice/core/backend";
import { z } from "zod";
import { parsedText } from "../store/parsed-text.js";

const counted = z.object({ cpuCount: z.number().optional(), memoryMiB: z.number().optional() });

/** Limits of a sandbox that quotas count, as the store has them. */
export function countedText(limits: Limits): string {
  return JSON.stringify(counted.parse(limits));
}

/** None for a text that another version has written: the sandbox is counted all the same. */
export function limitsOf(text: string): Limits {
  return parsedText(counted, text) ?? {};
}
