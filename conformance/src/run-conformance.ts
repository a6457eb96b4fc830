import { BootError, messageOf, type Plugin } from "@coppice/core";
import { Backends } from "@coppice/core/backend";
import type { ConformanceSubject } from "./kit/conformance-case.js";
import { conformanceCases } from "./conformance-cases.js";
import { type ConformanceResult, runCase, warmUp } from "./run-case.js";
import { startTestServer } from "@coppice/core/testing";

/** What a run of the kit covers. */
export interface ConformOptions {
  /** Further plugins with their settings, such as those that the backend's plugin requires. */
  readonly plugins?: readonly (readonly [plugin: Plugin, settings?: unknown])[];
  /** The only backend to test; each that the plugin adds when absent. */
  readonly backend?: string;
  /** Limits that the backends enforce on this host; `processes` and `memoryMiB` when absent. */
  readonly limits?: ConformanceSubject["limits"];
  /** Text in `group: name` of the only cases to run; all when absent. */
  readonly only?: string;
  /** Makes the sandboxes of the cases; template `base` without limits when absent. */
  readonly specification?: ConformanceSubject["specification"];
  readonly onResult?: (result: ConformanceResult, backend: string) => void;
  /** Ends the run after the current case. */
  readonly signal?: AbortSignal;
}

/**
 * Boots a server with a backend's plugin and runs all cases on every backend that it adds.
 * @returns one result for each case, in order.
 * @throws BootError when the server cannot start, or no backend makes a working sandbox.
 */
export async function runConformance(
  plugin: Plugin,
  settings: unknown,
  options: ConformOptions = {},
): Promise<readonly ConformanceResult[]> {
  await using server = await startTestServer({ plugins: [...(options.plugins ?? []), [plugin, settings]] });
  const added = server.resolve(Backends).all();
  const backends =
    options.backend === undefined ? added : added.filter(({ name }) => name === options.backend);
  if (backends.length === 0)
    throw new BootError([{ message: `plugin '${plugin.name}' adds no backend to put to the test` }]);
  const results: ConformanceResult[] = [];
  for (const backend of backends) {
    const subject: ConformanceSubject = {
      backend,
      ...(options.specification && { specification: options.specification }),
      ...(options.limits && { limits: options.limits }),
      // The server stops it.
      [Symbol.asyncDispose]: () => Promise.resolve(),
    };
    await warmUp(subject).catch((error: unknown) => {
      const message = `backend '${backend.name}' cannot make a working sandbox: ${messageOf(error)}`;
      throw new BootError([{ message }], { cause: error });
    });
    for (const each of conformanceCases) {
      if (!`${each.group}: ${each.name}`.includes(options.only ?? "")) continue;
      if (options.signal?.aborted) return results;
      const result = await runCase(each, subject);
      results.push(result);
      options.onResult?.(result, backend.name);
    }
  }
  return results;
}
