import { parseArgs } from "node:util";
import { requirePlugin } from "../boot/configure.js";
import { BootError, messageOf } from "../kernel/errors.js";
import { UsageError } from "./arguments/usage-error.js";

const SIGN = { passed: "ok     ", failed: "FAILED ", skipped: "skipped" } as const;

/** Runs the conformance suite on the backends of a plugin: one line a case, exit code 1 when one failed. */
export async function conform(args: readonly string[]): Promise<number> {
  const { positionals } = parseArgs({ args: [...args], allowPositionals: true });
  const [key, settings = "{}", ...rest] = positionals;
  if (key === undefined || rest.length > 0)
    throw new UsageError("name one plugin, and its settings as JSON if it needs any");
  const plugin = await requirePlugin(key, process.cwd()).catch((error: unknown) => {
    throw new BootError([{ message: messageOf(error) }], { cause: error });
  });
  // Loaded here: no other verb needs the kit.
  const { runConformance } = await import("../testing/conform.js");
  const counts = { passed: 0, failed: 0, skipped: 0 };
  await runConformance(plugin, parseSettings(settings), {
    onResult({ group, name, outcome, reason }, backend) {
      counts[outcome] += 1;
      process.stdout.write(
        `${SIGN[outcome]} ${backend} ${group}: ${name}${reason === undefined ? "" : ` (${reason})`}\n`,
      );
    },
  });
  process.stdout.write(`${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped\n`);
  return counts.failed === 0 ? 0 : 1;
}

function parseSettings(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new BootError([{ message: `the settings are no JSON: ${messageOf(error)}` }], { cause: error });
  }
}
