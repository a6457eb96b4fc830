import type { Logger } from "@coppice/core";
import type { SandboxBackend } from "@coppice/core/backend";
import type { BuildLog } from "../model/build-log.js";
import type { BuildReason } from "../model/build-record.js";

/** Beside its steps a build makes its base and its last image. */
const FIRST_AND_LAST = 2;
const LONGEST_TEXT = 100;
/** A layer as the log of a build has it. */
const LAYER = /^(CACHED )?\[[^\]]+\] ([^]*) \[[0-9a-f]{64}\]$/;
const OUTPUT = /^\[builder [^\]]+\] \[std(out|err)\]: /;

/** Tells the server's log how far a build is: a line for each step. What steps print is there for debugging. */
export function recipeProgress(
  log: Logger,
  { template, steps }: { readonly template: string; readonly steps: number },
): BuildLog {
  const of = steps + FIRST_AND_LAST;
  return ({ level, message, step }) => {
    const number = step === "base" ? 1 : step === "finalize" ? of : Number(step) + 1;
    const [, cached = "", layer] = LAYER.exec(message) ?? [];
    // The first line and the last one have no step, and a failure is told when the build has ended.
    const isDetail = step === undefined || ["debug", "error"].includes(level) || OUTPUT.test(message);
    log[isDetail ? "debug" : level](
      { template, step: number, of },
      isDetail
        ? message
        : `template '${template}', step ${number} of ${of}: ${cached}${shorten(layer ?? message)}`,
    );
  };
}

/** Advice for the operator where a build has failed. */
export function remedyFor(
  { message: reason, step }: BuildReason,
  { name, offline }: SandboxBackend,
  template: string,
): string {
  const [, program] = /(?:has no|does not have the program) (\w+)/.exec(reason) ?? [];
  if (program !== undefined) return `install it (Debian: apt-get install ${program})`;
  if (reason.startsWith("with the archive of "))
    return "templates.debian.snapshots names its address; templates.pins: prefer takes the newest packages where it fails";
  const logs = `'coppice template logs <config> ${template}' shows what its steps said`;
  return offline === true && Number(step) > 0
    ? `its steps had no network: see egress of ${name}; ${logs}`
    : logs;
}

function shorten(text: string): string {
  const line = text.trim().replaceAll(/\s+/g, " ");
  return line.length > LONGEST_TEXT ? `${line.slice(0, LONGEST_TEXT)} …` : line;
}
