import { MEBIBYTE } from "../../config/units.js";
import { SandboxError } from "../../kernel/errors.js";
import type { ImageSource } from "../contract/backend.js";
import { imageTooLarge } from "./image-too-large.js";
import { PREPARED_REFERENCE } from "./prepare-layout.js";

const MAX_REASON_LENGTH = 300;
/** Beside what an image of that size takes at most, a minute. */
const CPU_SECONDS = 60;
const SLOWEST_BYTES_PER_SECOND = 8 * MEBIBYTE;
const SLOWEST_ENTRIES_PER_SECOND = 1_000;

/** Arguments by which umoci(1) unpacks a prepared layout into an empty directory. */
export function unpackArguments(layout: string, root: string): readonly string[] {
  return ["--log", "error", "raw", "unpack", "--image", `${layout}:${PREPARED_REFERENCE}`, root];
}

/** Processor time that unpacking an image takes at most. */
export function unpackCpuSeconds({ maxBytes, maxEntries }: ImageSource): number {
  const slowest = maxBytes / SLOWEST_BYTES_PER_SECOND + maxEntries / SLOWEST_ENTRIES_PER_SECOND;
  return Math.ceil(CPU_SECONDS + slowest);
}

/**
 * Why umoci(1) has failed.
 * @param run `isKilled` by a limit of time or memory.
 * @param quota matches what it says when the root has reached a limit of this image alone.
 */
export function unpackFailure(
  run: { readonly isKilled: boolean; readonly code: number; readonly output: string },
  source: ImageSource,
  quota?: RegExp,
): SandboxError {
  const { code, isKilled, output } = run;
  if (isKilled || /file too large|SIGXFSZ/.test(output) || quota?.test(output)) return imageTooLarge(source);
  if (/no space left on device|dis[ck] quota exceeded/.test(output)) {
    return new SandboxError("host_resources_exhausted", "the host has no space for the image");
  }
  // Names in layers may contain any character.
  const line =
    output
      .replaceAll(/[^\P{C}\n]/gu, "")
      .trim()
      .split("\n")
      .at(-1) ?? "";
  const told = line.replace(/^.*?create rootfs: (unpack \w+: )?/, "").slice(0, MAX_REASON_LENGTH);
  const reason = told === "" ? `umoci ended with ${code}` : told;
  return new SandboxError("image_invalid", `the image cannot be unpacked: ${reason}`);
}
