import { locatePackage, requirePlugin } from "../boot/configure.js";
import { BootError, messageOf } from "../kernel/errors.js";
import type { Plugin } from "../plugin/plugin.js";
import type { Limits } from "../sandbox/contract/backend.js";
import { UsageError } from "./arguments.js";

const LIMITS = ["cpuCount", "memoryMiB", "diskMiB", "processes"] satisfies (keyof Limits)[];
const KIT = "@coppice/conformance";
const SIGN = { passed: "ok     ", failed: "FAILED ", skipped: "skipped" } as const;

interface Options {
  readonly limits?: string | undefined;
  readonly only?: string | undefined;
  readonly list?: boolean | undefined;
  readonly json?: boolean | undefined;
}

/**
 * Runs the conformance suite on the backends of a plugin, or lists its cases: one line a case, as text or JSON; exit code
 * 1 when one failed.
 */
export async function conform(
  key: string | undefined,
  settings: string,
  { limits, only, list, json }: Options,
): Promise<number> {
  if (list === true) {
    for (const each of casesOf(await loadKit(), only))
      process.stdout.write(`${json ? JSON.stringify(each) : described(each)}\n`);
    return 0;
  }
  if (key === undefined) throw new UsageError("missing required argument 'module'");
  const plugin = await requirePlugin(key, process.cwd()).catch((error: unknown) => {
    throw new BootError([{ message: messageOf(error) }], { cause: error });
  });
  const kit = await loadKit();
  casesOf(kit, only);
  const counts = { passed: 0, failed: 0, skipped: 0 };
  await kit.runConformance(plugin, parseSettings(settings), {
    ...(limits !== undefined && { limits: parseLimits(limits) }),
    ...(only !== undefined && { only }),
    onResult({ group, name, outcome, reason, durationMs }, backend) {
      counts[outcome] += 1;
      if (json) {
        process.stdout.write(`${JSON.stringify({ backend, group, name, outcome, reason, durationMs })}\n`);
        return;
      }
      process.stdout.write(
        `${SIGN[outcome]} ${backend} ${group}: ${name}${reason === undefined ? "" : ` (${reason})`}\n`,
      );
    },
  });
  if (!json)
    process.stdout.write(`${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped\n`);
  return counts.failed === 0 ? 0 : 1;
}

/** What this verb needs of the kit: a package that depends on core, so that core cannot name its types. */
interface Kit {
  readonly conformanceCases: readonly KitCase[];
  readonly runConformance: (
    plugin: Plugin,
    settings: unknown,
    options: {
      readonly limits?: readonly (keyof Limits)[];
      readonly only?: string;
      readonly onResult: (result: KitResult, backend: string) => void;
    },
  ) => Promise<unknown>;
}

interface KitCase {
  readonly group: string;
  readonly name: string;
  /** Names, or a program or a limit. */
  readonly needs?: readonly (string | Readonly<Record<string, string>>)[];
}

interface KitResult {
  readonly name: string;
  readonly group: string;
  readonly outcome: keyof typeof SIGN;
  readonly reason?: string | undefined;
  readonly durationMs: number;
}

/** @throws BootError where the kit is not installed. */
async function loadKit(): Promise<Kit> {
  try {
    return (await import(locatePackage(KIT, process.cwd()))) as Kit;
  } catch (error) {
    const message = `cannot load ${KIT}, which has the cases (npm install --save-dev ${KIT}): ${messageOf(error)}`;
    throw new BootError([{ message }], { cause: error });
  }
}

/** The cases that are asked for. @throws UsageError when there is none. */
function casesOf({ conformanceCases }: Kit, only = ""): readonly KitCase[] {
  const cases = conformanceCases.filter(({ group, name }) => `${group}: ${name}`.includes(only));
  if (cases.length > 0) return cases;
  throw new UsageError(`no case has '${only}' in its group and name: --list prints them`);
}

function described({ group, name, needs = [] }: KitCase): string {
  const names = needs.map((need) =>
    typeof need === "string" ? need : Object.entries(need).flat().join(" "),
  );
  return `${group}: ${name}${names.length === 0 ? "" : ` (needs ${names.join(", ")})`}`;
}

/** @param text names of limits, with commas; empty for none. */
function parseLimits(text: string): readonly (keyof Limits)[] {
  return text
    .split(",")
    .filter((name) => name !== "")
    .map((name) => {
      const limit = LIMITS.find((one) => one === name);
      if (limit === undefined) throw new UsageError(`a limit is ${LIMITS.join(", ")}, not '${name}'`);
      return limit;
    });
}

function parseSettings(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new BootError([{ message: `the settings are no JSON: ${messageOf(error)}` }], { cause: error });
  }
}
