import { createHash } from "node:crypto";
import type { BuildStep } from "../model/build-request.js";

/** Changes when builds make other files of the same request. */
const VERSION = 2;

/** Key of a layer that depends on nothing but these. */
export function baseKey(...parts: readonly (string | number | object | undefined)[]): string {
  return keyOf([VERSION, ...parts]);
}

/** Key of the layer that a step makes of another layer. */
export function stepKey(parent: string, { type, args, filesHash }: Omit<BuildStep, "force">): string {
  return keyOf([parent, type.toUpperCase(), args, filesHash]);
}

function keyOf(parts: readonly unknown[]): string {
  return createHash("sha256").update(JSON.stringify(parts)).digest("hex");
}
