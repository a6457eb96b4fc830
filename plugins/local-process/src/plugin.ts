import { dirname, isAbsolute } from "node:path";
import { BootError, definePlugin, type Listener, Listeners, size } from "@coppice/core";
import { Backends } from "@coppice/core/backend";
import { z } from "zod";
import { diagnoseHost } from "./diagnose-host.js";
import { LocalProcessBackend } from "./local-process-backend.js";
import { REASONS } from "./reasons.js";

const MOST_IN_PLACE_BYTES = 2 ** 20;

const config = z.strictObject({
  directory: z
    .string()
    .min(1)
    .optional()
    .describe(
      "Directory for the trees of sandboxes; the system's directory for temporary files when absent.",
    ),
  python: z
    .string()
    .min(1)
    .default("python3")
    .describe(
      "Interpreter with ipykernel that is `python3` for processes that are started without a login shell.",
    ),
  node: z
    .string()
    .min(1)
    .default("node")
    .describe("`node` for processes that are started without a login shell: path of a Node.js."),
  insecure: z
    .boolean()
    .default(false)
    .describe(
      "Serve listeners that other machines can reach, although sandboxes are not isolated from this host.",
    ),
  writeInPlaceLimit: size()
    .refine((bytes) => bytes <= MOST_IN_PLACE_BYTES, "at most 1MiB: it is written without a pause for others")
    .prefault("256KiB")
    .describe(
      "Files up to this size are written in place at once; larger ones are staged beside the target and renamed.",
    ),
  diskScanEntries: z
    .int()
    .min(0)
    .default(20_000)
    .describe("Maximum of files scanned to measure the disk usage of a sandbox."),
});

/**
 * Backend without isolation: processes of this host, with files in a directory. It is also the example of a backend:
 * start reading here.
 */
export const plugin = definePlugin({
  name: "local-process",
  reasons: REASONS,
  config,
  requires: { backends: Backends, listeners: Listeners },
  setup(plugin, { backends, listeners }) {
    const { insecure, python, node, ...settings } = plugin.config;
    const backend = new LocalProcessBackend(
      {
        ...settings,
        programDirectories: [python, node].filter((program) => isAbsolute(program)).map(dirname),
      },
      plugin.log,
    );
    plugin.onStop(() => backend.close());
    backends.add(backend);
    plugin.health("local-process", async () => {
      // The plugin host drops this backend when another one is the default and this host cannot run it.
      if (backends.all().includes(backend)) await backend.agent.start();
    });
    const requirePrivate = (): void => {
      if (!insecure) requireLoopback(listeners.all());
    };
    plugin.onStart(requirePrivate);
    plugin.diagnose("local-process", async (examination) => {
      requirePrivate();
      return diagnoseHost({ agent: backend.agent, python }, examination);
    });
  },
});

/**
 * Refuses to expose sandboxes without isolation to other machines.
 * @throws BootError with every reachable listener that is not marked `insecure`.
 */
function requireLoopback(listeners: readonly Listener[]): void {
  const open = listeners.filter((listener) => !listener.isLoopback && !listener.insecure);
  if (open.length === 0) return;
  throw new BootError(
    open.map(({ name, host }) => ({
      message:
        `local-process does not isolate sandboxes from this host, and listener '${name}' on ${host} can be reached ` +
        "from other machines: bind it to 127.0.0.1, or set `insecure: true` on the listener or on local-process",
    })),
  );
}
