import { tmpdir } from "node:os";
import { Clock, definePlugin } from "@coppice/core";
import { z } from "zod";
import { CodeContexts } from "./code-contexts.js";
import { codeRoutes } from "./code-routes.js";
import { KernelMetrics } from "./kernel-metrics.js";
import { LONGEST_SOCKET_PATH } from "./relay.js";
import { openSocketDirectory } from "./socket-directory.js";

const SOCKET_NAME_LENGTH = "/coppice-zmq-XXXXXX/0123456789ab-control".length;
const MiB = 1024 * 1024;
const Milliseconds = z.int().min(1);
const Bytes = z.int().min(1);

const config = z.strictObject({
  python: z
    .string()
    .min(1)
    .default("python3")
    .describe("Interpreter with ipykernel, inside the sandbox: a path or a name in PATH"),
  runDirectory: z
    .string()
    .min(1)
    .optional()
    .describe(
      "Host directory for the sockets to kernels, with a short path; the system's temporary one when absent",
    ),
  startTimeoutMs: Milliseconds.default(30_000).describe("How long a kernel may take to start"),
  keepaliveMs: Milliseconds.default(5000).describe(
    "Silence after which an execution's stream says that it is alive",
  ),
  interruptGraceMs: Milliseconds.default(5000).describe(
    "How long an interrupted cell may go on before its kernel is killed",
  ),
  maxContexts: z.int().min(1).default(64).describe("Contexts of one sandbox"),
  maxCodeBytes: Bytes.default(16 * MiB).describe("Largest request body"),
  maxOutputBytes: Bytes.default(256 * MiB).describe(
    "Output and results of one execution; the rest is dropped with a note on stderr",
  ),
  maxMessageBytes: Bytes.default(128 * MiB).describe(
    "Largest single message of a kernel; a larger one breaks the connection",
  ),
});

/** `run_code`: Python kernels inside the sandboxes, behind E2B's code interpreter interface. */
export const plugin = definePlugin({
  name: "jupyter",
  config,
  requires: { clock: Clock },
  async setup(plugin, { clock }) {
    const {
      keepaliveMs,
      maxCodeBytes,
      maxContexts,
      maxOutputBytes,
      runDirectory = tmpdir(),
      ...settings
    } = plugin.config;

    // The name of the directory and that of a socket in it come on top.
    if (runDirectory.length + SOCKET_NAME_LENGTH > LONGEST_SOCKET_PATH) {
      throw new Error(`jupyter.runDirectory: '${runDirectory}' is too long a path for a UNIX socket`);
    }
    const sockets = await openSocketDirectory(runDirectory);
    plugin.onStop(() => sockets[Symbol.asyncDispose]());

    const contexts = new CodeContexts({
      settings: { ...settings, socketDirectory: sockets.path },
      maxContexts,
      maxOutputBytes,
      metrics: new KernelMetrics(plugin.metrics),
      log: plugin.log,
    });
    plugin.onStop(() => contexts.end());

    codeRoutes(plugin.http("code"), { contexts, clock, keepaliveMs, maxCodeBytes });
  },
});
