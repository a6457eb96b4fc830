import {
  Clock,
  definePlugin,
  duration,
  Sandboxes,
  size,
  Targets,
  unlessAborted,
  WarmUps,
  type LiveSandbox,
  MemoryRoom,
} from "@coppice/core";
import { z } from "zod";
import { CodeInterpreter } from "./contexts/code-interpreter.js";
import { CodeContexts } from "./contexts/code-contexts.js";
import { mountCode } from "./e2b/code-routes.js";
import { mountJupyterServer } from "./server/jupyter-server.js";
import { jupyterServerConfig } from "./server/jupyter-server-config.js";
import { javascriptProgram } from "./programs/javascript-program.js";
import { kernelMetrics } from "./kernel/kernel-metrics.js";
import { KernelNotes } from "./kernel/kernel-notes.js";
import { Languages } from "./programs/languages.js";
import { PORTS_OF_KERNEL, PortLeases } from "./programs/port-leases.js";
import { pythonProgram } from "./programs/python-program.js";
import { openTransport } from "./transport/zmtp-channels.js";
import { REASONS } from "./reasons.js";

const LAST_PORT = 65_535;

const count = () => z.int().min(1);
const program = () => z.string().min(1);

const kernelStart = z.enum(["eager", "lazy"]);

const jupyterConfig = z.strictObject({
  python: program()
    .default("python3")
    .describe("Interpreter with ipykernel, inside the sandbox: a path or a name in PATH"),
  node: program()
    .default("node")
    .describe(
      "Program for JavaScript and TypeScript inside the sandbox, Node.js 22.13 or newer: a path or a name in PATH",
    ),
  user: z
    .string()
    .min(1)
    .optional()
    .describe(
      "Account of the sandbox that kernels run as: `root` as at E2B; when absent the sandbox's default user, or root for contexts whose folder only root may enter. `apt-get install` in a cell needs `root`, and a template whose /usr can be written",
    ),
  transport: z
    .enum(["zeromq", "zmtp"])
    .default("zeromq")
    .describe(
      "Client for kernels: the native library `zeromq`, for sandboxes whose ports have an address of the host, or the plugin's own `zmtp`. All other sandboxes are always reached by `zmtp`",
    ),
  kernel: kernelStart
    .default("lazy")
    .describe("When a sandbox's Python kernel starts: `eager` when it is made, `lazy` with the first code"),
  templates: z
    .record(
      z.string(),
      z.strictObject({
        kernel: kernelStart.optional().describe("Instead of `kernel`"),
        zygote: z.boolean().optional().describe("Instead of `zygote.enabled`"),
      }),
    )
    .default({})
    .describe("What is different for sandboxes of a template, by its name"),
  startTimeout: duration("60s").describe(
    "How long a kernel may take to start; one for Java takes half a minute on a loaded machine",
  ),
  keepalive: duration("5s").describe("Silence after which an execution's stream gets a keepalive"),
  interruptGrace: duration("5s").describe(
    "Time that an interrupted cell has to end, and then the kernel to begin the next one, before the kernel is killed",
  ),
  heartbeat: z
    .strictObject({
      interval: duration("5s").describe("Time between two heartbeats of a kernel"),
      maxMisses: z
        .int()
        .min(2)
        .default(6)
        .describe("Heartbeats in a row without an answer after which a kernel counts as dead"),
    })
    .prefault({})
    .describe("Ends a kernel whose process exists but does not answer; its context starts another one"),
  maxContexts: count()
    .default(64)
    .describe("Contexts of one sandbox; beyond it, each language still gets its default one"),
  maxWaiting: count()
    .default(100)
    .describe("Executions that may wait in one context; one more is refused with 429"),
  maxCode: size("16MiB").describe("Largest request body"),
  maxOutput: size("256MiB").describe(
    "Output and results of one execution; the rest is dropped with a note on stderr",
  ),
  maxMessage: size("128MiB").describe(
    "Largest single message of a kernel. Built-in kernels shorten values and errors to it; a kernel that sends a larger message is ended, and its execution fails",
  ),
  maxHeldMessages: size("512MiB").describe(
    "Messages of all kernels and their clients over 64 KiB that are not complete, or wait for their receiver. Beyond it the kernel that holds the most, of the sandbox that holds the most, of the tenant that holds the most, is ended, or its clients are disconnected",
  ),
  maxError: size("1MiB").describe("Value and traceback of one error; the rest is cut off with a note"),
  maxDataCells: count()
    .default(1_000_000)
    .describe("Cells of a DataFrame, or points of a chart, in the data of one result"),
  zygote: z
    .strictObject({
      enabled: z.boolean().default(false).describe("Keep one in every sandbox that has run Python"),
      imports: z
        .array(z.string().regex(/^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$/, "expected the name of a module"))
        .default(["numpy", "pandas", "matplotlib.pyplot"])
        .describe("Modules that it imports for all kernels; one that a sandbox lacks is left out"),
    })
    .prefault({})
    .describe("A process that has imported what Python kernels need, and from which they are forked"),
  installedKernels: z
    .strictObject({
      firstPort: z
        .int()
        .min(1024)
        .default(20_000)
        .describe("First port that they listen on; each takes five. Best below the ephemeral ports"),
      maximum: count().default(2000).describe("Of them at once; one more is refused with 429"),
    })
    .refine(
      ({ firstPort, maximum }) => firstPort + maximum * PORTS_OF_KERNEL <= LAST_PORT + 1,
      `firstPort and five ports for each of the maximum are beyond ${LAST_PORT}`,
    )
    .prefault({})
    .describe("Kernels that a template has beside the built-in ones, such as R"),
  server: jupyterServerConfig
    .prefault({})
    .describe("An interface like that of a Jupyter server, for each sandbox"),
});

/** `run_code`: Python kernels inside the sandboxes, behind E2B's code interpreter interface. */
export const plugin = definePlugin({
  name: "jupyter",
  reasons: REASONS,
  config: jupyterConfig,
  requires: { clock: Clock, sandboxes: Sandboxes, targets: Targets, warmUps: WarmUps },
  provides: [CodeInterpreter],
  async setup(plugin, { clock, sandboxes, targets, warmUps }) {
    const { config, log } = plugin;
    const { python, maxDataCells, maxMessage: maxMessageBytes, templates } = config;
    // The rest is for the headers of a message.
    const mostBytes = Math.floor(maxMessageBytes * 0.9);
    const ipython = { python, maxDataCells, mostBytes };
    const nodejs = { node: config.node, mostBytes };
    const languages = new Languages(
      new Map([
        ["python", pythonProgram({ ...ipython, language: "python" })],
        ["javascript", javascriptProgram({ ...nodejs, language: "javascript" })],
        ["typescript", javascriptProgram({ ...nodejs, language: "typescript" })],
        ["bash", pythonProgram({ ...ipython, language: "bash" })],
      ]),
      log,
    );
    const room = new MemoryRoom(config.maxHeldMessages);
    const contexts = new CodeContexts({
      languages,
      userName: config.user,
      settings: {
        openChannels: await openTransport(config.transport, log),
        startTimeoutMs: config.startTimeout,
        interruptGraceMs: config.interruptGrace,
        maxMessageBytes,
        maxErrorBytes: config.maxError,
        heartbeat: { clock, intervalMs: config.heartbeat.interval, maxMisses: config.heartbeat.maxMisses },
        portLeases: new PortLeases(config.installedKernels),
        room,
      },
      zygotes: {
        python,
        imports: config.zygote.imports,
        startTimeoutMs: config.startTimeout,
        isWanted: ({ record }) => templates[record.template]?.zygote ?? config.zygote.enabled,
      },
      maxContexts: config.maxContexts,
      maxWaiting: config.maxWaiting,
      maxOutputBytes: config.maxOutput,
      metrics: kernelMetrics(plugin.metrics),
      notes: new KernelNotes(() => plugin.dataDir(), log),
      log,
    });
    plugin.bindValue(CodeInterpreter, contexts);
    plugin.onStop(() => contexts.detach());
    plugin.onStart(() => contexts.adopt(sandboxes.list()));
    const isEager = ({ record }: LiveSandbox): boolean =>
      (templates[record.template]?.kernel ?? config.kernel) === "eager";
    sandboxes.onCreated((sandbox) => {
      if (isEager(sandbox)) void contexts.warm(sandbox);
    });
    warmUps.add({
      async prepare(sandbox, signal) {
        signal.throwIfAborted();
        const own = await contexts.of(sandbox);
        // Work that continues after this is aborted ends with the sandbox.
        await unlessAborted(signal, () => own.prepare({ withKernel: isEager(sandbox) }));
      },
      handOut: async (sandbox) => (await contexts.of(sandbox)).renewEnvironment(),
    });

    mountCode(plugin.http("code", { errors: "e2b" }), {
      contexts,
      clock,
      keepaliveMs: config.keepalive,
      maxCodeBytes: config.maxCode,
    });
    if (config.server.enabled) {
      const settings = config.server;
      mountJupyterServer(plugin, { contexts, languages, settings, clock, room, sandboxes, targets });
    }
  },
});
