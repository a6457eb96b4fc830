import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { API_KEY } from "./api-key.js";
import { PYTHON } from "../host/python.js";

export const COPPICE = fileURLToPath(new URL("../../../../core/bin/coppice.mjs", import.meta.url));

const START_TIMEOUT_MS = 30_000;
/** As in the project's own start scripts. */
const NODE_OPTIONS = ["--max-semi-space-size=4"];
const ENVIRONMENT = { MALLOC_ARENA_MAX: "1" };

/** A folder with a configuration in it, the data of its server, and nothing else; removed by `remove`. */
export interface Installation {
  readonly directory: string;
  readonly configFile: string;
  remove(): Promise<void>;
}

export interface InstallationOptions {
  /** Laid over the configuration, key by key at the top level. */
  readonly config?: Readonly<Record<string, unknown>>;
  /** Further plugins, and settings that replace the usual ones, made from the path of the folder. */
  readonly plugins?: (directory: string) => Readonly<Record<string, unknown>>;
}

/** Makes sandboxes of linux-namespaces, kept in the folder; the kernel of the code interpreter is the host's Python. */
export const namespacePlugins = (directory: string): Readonly<Record<string, unknown>> => ({
  "jupyter": { python: "python3" },
  "linux-namespaces": { directory: join(directory, "namespaces"), python: PYTHON },
});

/**
 * Writes a configuration with free ports, every plugin of the project, and sandboxes in the folder's `sandboxes`.
 * The file has JSON, which is valid YAML 1.2.
 */
export async function makeInstallation(options: InstallationOptions = {}): Promise<Installation> {
  const directory = await mkdtemp(join(tmpdir(), "coppice-installation-"));
  const configFile = join(directory, "coppice.yaml");
  const listener = { host: "127.0.0.1", port: 0 };
  const config = {
    listeners: { api: listener, ops: listener },
    dataDir: join(directory, "data"),
    log: { level: "warn" },
    http: { drainTimeout: "500ms" },
    ...options.config,
    plugins: {
      "access": { apiKeys: [API_KEY] },
      "sandbox-api": {},
      "templates": {},
      "envd-compat": {},
      "commands": {},
      "events": {},
      "files": {},
      "jupyter": { python: PYTHON },
      "local-process": {},
      ...options.plugins?.(directory),
    },
  };
  await writeFile(configFile, JSON.stringify(config, undefined, 2));
  return { directory, configFile, remove: () => rm(directory, { recursive: true, force: true }) };
}

/** Exit code and signal of a process. */
export interface ProcessEnd {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

/** `coppice start` as a process of its own. */
export class ServerProcess implements AsyncDisposable {
  readonly pid: number;
  /** Base URLs by listener. */
  readonly urls: Readonly<Record<string, string>>;
  readonly ended: Promise<ProcessEnd>;
  /** Lines of its output. The array grows. */
  readonly printed: readonly string[];
  readonly #child: ChildProcess;

  private constructor(
    child: ChildProcess,
    { urls, ended, printed }: Pick<ServerProcess, "urls" | "ended" | "printed">,
  ) {
    this.#child = child;
    this.pid = child.pid ?? 0;
    this.urls = urls;
    this.ended = ended;
    this.printed = printed;
  }

  /**
   * Starts a server and waits until it has printed its addresses.
   * @param prefix words before its command line, of a program that becomes the server's.
   * @param program of another installation than this checkout.
   * @param verb `start`, or `dev`.
   * @throws Error with its whole output when it ends or prints nothing.
   */
  static async start(
    configFile: string,
    environment: NodeJS.ProcessEnv = {},
    prefix: readonly string[] = [],
    program = COPPICE,
    verb = "start",
  ): Promise<ServerProcess> {
    const line = [...prefix, process.execPath, ...NODE_OPTIONS, program, verb, configFile];
    const child = spawn(line[0] ?? "", line.slice(1), {
      env: { ...process.env, ...ENVIRONMENT, ...environment },
      // The channel closes when this process ends in any way; then the server stops.
      stdio: ["ignore", "pipe", "pipe", "ipc"],
    });
    child.channel?.unref();
    const ended = once(child, "exit").then(([code, signal]): ProcessEnd => ({ code, signal }));
    const printed: string[] = [];
    const urls: Record<string, string> = {};
    const { promise: serving, resolve } = Promise.withResolvers<"serving">();
    for (const stream of [child.stdout, child.stderr]) {
      if (stream === null) continue;
      createInterface({ input: stream }).on("line", (line) => {
        printed.push(line);
        const [, name, url] = /^ {2}(\w+) +(https?:\/\/\S+)$/.exec(line) ?? [];
        if (name !== undefined && url !== undefined) urls[name] = url;
        // Printed after the addresses, so all of them are known.
        if (line.includes("E2B_API_URL=")) resolve("serving");
      });
    }
    const timer = new AbortController();
    const slow = new Promise<"slow">((give) => {
      const handle = setTimeout(() => give("slow"), START_TIMEOUT_MS);
      timer.signal.addEventListener("abort", () => clearTimeout(handle));
    });
    const outcome = await Promise.race([serving, ended, slow]);
    timer.abort();
    if (outcome === "serving") return new ServerProcess(child, { urls, ended, printed });
    child.kill("SIGKILL");
    throw new Error(`the server did not start (${JSON.stringify(outcome)}):\n${printed.join("\n")}`);
  }

  /** URL of the listener that takes every request. */
  get url(): string {
    return this.urls["api"] ?? "";
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }

  /**
   * Asks the module that was preloaded into the server, over its channel. One question at a time; undefined when
   * the server has ended.
   */
  async ask(question: string): Promise<unknown> {
    const answered = once(this.#child, "message").then(([answer]: unknown[]) => answer);
    this.#child.send(question);
    return Promise.race([answered, this.ended.then(() => undefined)]);
  }

  /** Stops gracefully; resolves with how it ended. */
  async stop(): Promise<ProcessEnd> {
    this.signal("SIGTERM");
    return this.ended;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }
}
