import { DEFAULT_PATH, runToEnd } from "@coppice/core/backend";
import { HostConnection, type SpawnRequest, startHostAgent } from "@coppice/agent";
import { BoundedBytes, type Finding, SandboxError } from "@coppice/core";
import { OutputLines } from "../model/output-lines.js";
import type { TemplatesConfig } from "../templates-config.js";

const NAMES: Readonly<Record<string, string>> = { x64: "amd64", ia32: "386" };

/** This host's, in the names of images. */
export const ARCHITECTURE: string = NAMES[process.arch] ?? process.arch;

/** System that images are made for. */
export const SYSTEM = process.platform === "freebsd" ? "freebsd" : "linux";

export interface HostRun {
  readonly args: readonly string[];
  readonly cwd: string;
  readonly environment: Readonly<Record<string, string>>;
  /** For a program that works on what others send. */
  readonly limits?: SpawnRequest["limits"];
  /** Ends the program, and whatever it started. */
  readonly signal: AbortSignal;
  /** Takes each line of its output, while it runs. */
  readonly onLine?: (line: string) => void;
}

interface HostResult {
  /** 127 when the program is missing, undefined when a signal ended it. */
  readonly code: number | undefined;
  /** The end of its output. */
  readonly output: string;
}

const OUTPUT_BYTES = 16 * 1024;

/**
 * Programs of the host that make images. A small process of its own starts them, and ends them when this one ends, so
 * that the server never forks.
 */
export class HostPrograms {
  readonly #agent = new HostConnection(startHostAgent);

  /** Runs a program until it exits. @param path or a name in PATH. @throws the signal's reason, SandboxError unavailable */
  async run(path: string, { args, cwd, environment, limits, signal, onLine }: HostRun): Promise<HostResult> {
    signal.throwIfAborted();
    const agent = await this.#agent.get();
    const started = await agent.spawn({
      path,
      args,
      cwd,
      env: { PATH: DEFAULT_PATH, LC_ALL: "C.UTF-8", ...environment },
      limits,
      input: "none",
    });
    const output = new BoundedBytes(OUTPUT_BYTES, "last");
    const lines = new OutputLines((_stream, line) => onLine?.(line));
    const { code } = await runToEnd(started, {
      stop: signal,
      onOutput: (piece) => {
        output.push(piece.data);
        return lines.push(piece);
      },
    });
    lines.end();
    signal.throwIfAborted();
    if (agent.isOver) throw new SandboxError("agent_unavailable", `the host's agent ended while ${path} ran`);
    return { code, output: output.text };
  }

  /** Ends all programs. Later calls fail. */
  close(): Promise<void> {
    return this.#agent.close();
  }
}

interface DiagnosedPrograms {
  readonly programs: Pick<HostPrograms, "run">;
  readonly settings: Pick<TemplatesConfig, "images" | "debian">;
  /** True where the configuration has a template of Debian packages. */
  readonly needsDebian: boolean;
  readonly signal: AbortSignal;
}

/** Looks for the programs that images are made with, for `coppice doctor`. */
export async function diagnosePrograms(options: DiagnosedPrograms): Promise<readonly Finding[]> {
  const { images, debian } = options.settings;
  const found = [diagnose(options, images.skopeo, "skopeo", "images.skopeo", "images cannot be pulled")];
  if (options.needsDebian) {
    const without = "templates of Debian packages cannot be built";
    found.push(diagnose(options, debian.mmdebstrap, "mmdebstrap", "debian.mmdebstrap", without));
  }
  return Promise.all(found);
}

async function diagnose(
  { programs, signal }: DiagnosedPrograms,
  path: string,
  name: string,
  key: string,
  without: string,
): Promise<Finding> {
  const run = { args: ["--version"], cwd: "/", environment: {}, signal };
  const { code, output } = await programs.run(path, run);
  if (code === 0) return { severity: "ok", message: output.trim() };
  return {
    severity: "warn",
    message: `${without}: ${name} does not run`,
    fix: `install ${name} (Debian: apt-get install ${name}, FreeBSD: pkg install ${name}), or set templates.${key}`,
  };
}
