import { mkdir, readFile, writeFile } from "node:fs/promises";
import { extname, join } from "node:path";
import { text } from "node:stream/consumers";
import { stripVTControlCharacters } from "node:util";
import { printLine, SandboxError, visibleText } from "@coppice/core/client";
import { type Result, Sandbox } from "@e2b/code-interpreter";
import { printJson } from "../connection/print.js";
import { creationOf, type CreateOptions } from "./lifecycle.js";

/** Languages by the end of a file's name. */
const LANGUAGES: Readonly<Record<string, string>> = {
  ".py": "python",
  ".js": "javascript",
  ".mjs": "javascript",
  ".ts": "typescript",
  ".sh": "bash",
  ".r": "r",
  ".java": "java",
};

/** Results that are saved, by the end of the file's name; those in text are encoded as they are. */
const SAVED = { png: "base64", jpeg: "base64", pdf: "base64", svg: "utf8" } as const;

interface RunOptions extends CreateOptions {
  readonly code?: string | undefined;
  readonly language?: string | undefined;
  readonly output: string;
  readonly keep?: true | undefined;
  readonly json?: true | undefined;
}

/** Runs code in a sandbox that is removed afterwards: prints what it prints, and saves its plots. */
export async function run(file: string | undefined, options: RunOptions): Promise<number> {
  if ((file === undefined) === (options.code === undefined))
    throw new SandboxError("usage_invalid", "name a file, or '-' for standard input, or give code by -c");
  const code =
    options.code ?? (file === "-" ? await text(process.stdin) : await readFile(file ?? "", "utf8"));
  const language = options.language ?? LANGUAGES[extname(file ?? "").toLowerCase()] ?? "python";
  const ending = new AbortController();
  const onSignal = (): void => ending.abort();
  process.on("SIGINT", onSignal);
  process.on("SIGTERM", onSignal);
  const creation = creationOf(options);
  const sandbox = await (options.template === undefined
    ? Sandbox.create(creation)
    : Sandbox.create(options.template, creation));
  try {
    const show = (stream: NodeJS.WriteStream) => (output: { readonly line: string }) => {
      if (options.json) return;
      // Programs colour their output, and a sandbox must not steer this terminal.
      stream.write(stream.isTTY ? visibleText(stripVTControlCharacters(output.line)) : output.line);
    };
    const interrupted = new Promise<undefined>((resolve) => {
      ending.signal.addEventListener("abort", () => resolve(undefined));
    });
    const execution = await Promise.race([
      interrupted,
      sandbox.runCode(code, {
        language,
        timeoutMs: 0,
        onStdout: show(process.stdout),
        onStderr: show(process.stderr),
      }),
    ]);
    if (execution === undefined) return EXIT_INTERRUPTED;
    const files: string[] = [];
    for (const result of execution.results) files.push(...(await save(result, options.output)));
    const { error, results, logs } = execution;
    if (options.json) printJson({ sandboxId: sandbox.sandboxId, logs, results, files, error });
    else {
      for (const { text: shown } of results) if (shown) printLine(shown);
      for (const each of files) printLine(`saved ${each}`, process.stderr);
      if (error)
        printLine(
          stripVTControlCharacters(error.traceback || `${error.name}: ${error.value}`),
          process.stderr,
        );
    }
    return error === undefined ? 0 : 1;
  } finally {
    process.off("SIGINT", onSignal);
    process.off("SIGTERM", onSignal);
    if (options.keep) printLine(`kept ${sandbox.sandboxId}`, process.stderr);
    else await sandbox.kill();
  }
}

/** 128 and SIGINT. */
const EXIT_INTERRUPTED = 130;

/** Saves the plots of a result under the first names that are free. @returns the names */
async function save(result: Result, folder: string): Promise<readonly string[]> {
  for (const [end, encoding] of Object.entries(SAVED) as [keyof typeof SAVED, BufferEncoding][]) {
    const data = result[end];
    if (data === undefined) continue;
    await mkdir(folder, { recursive: true });
    for (let number = 1; ; number += 1) {
      const path = join(folder, `plot-${number}.${end}`);
      try {
        await writeFile(path, Buffer.from(data, encoding), { flag: "wx" });
        return [path];
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
      }
    }
  }
  return [];
}
