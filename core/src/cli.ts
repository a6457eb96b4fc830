import { statSync } from "node:fs";
import { type Command, CommanderError } from "@commander-js/extra-typings";
import { EXIT_CONFIG, isUsageError } from "./cli/arguments.js";
import { candidates } from "./cli/completion.js";
import { makeProgram, takesActions } from "./cli/program.js";
import { ApiFailure } from "./cli/server-client.js";
import { printFailure } from "./cli/terminal.js";
import { BootError, SandboxError } from "./kernel/errors.js";
import { CORE } from "./kernel/one-core.js";

/** sysexits.h: EX_USAGE. */
const EXIT_USAGE = 64;
/** 128 and SIGPIPE. */
const EXIT_BROKEN_PIPE = 141;

/** The package with the verbs of clients. It depends on core, so that core cannot name its types. */
const CLIENT = "@coppice/cli";

/** @returns the exit code. */
export async function main(argv: readonly string[]): Promise<number> {
  const [name = "", ...args] = argv;
  // Ends quietly when the reader of the output has gone, as with `| head`; not a server, which stops in order.
  if (name !== "start" && name !== "dev") process.stdout.on("error", () => process.exit(EXIT_BROKEN_PIPE));
  const program = makeProgram(version());
  const found = () => program.commands.find((command) => command.name() === name);
  if (found() === undefined) await addClientVerbs(program);
  if (name === "__complete") {
    process.stdout.write(
      candidates(program, args)
        .map((each) => `${each}\n`)
        .join(""),
    );
    return 0;
  }
  return reportProblems(name, async () => {
    const words = [...argv];
    const known = found();
    const isAction = known !== undefined && takesActions(known) && !/^-|^$/.test(args[0] ?? "");
    if (known === undefined || isAction) {
      const at = [2, 1, 3].find((index) => isFile(words[index]));
      const [file] = at === undefined ? [] : words.splice(at, 1);
      if (file !== undefined) await (await import("./cli/plugin-verb.js")).addPluginVerbs(program, file);
      else program.showHelpAfterError(`A plugin's verb is coppice ${name} <action> <config.yaml>`);
    }
    await program.parseAsync(words, { from: "user" });
    return Number(process.exitCode ?? 0);
  });
}

async function addClientVerbs(program: Command): Promise<void> {
  try {
    const client = (await import(CLIENT)) as { readonly addClientVerbs: (program: Command) => void };
    client.addClientVerbs(program);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ERR_MODULE_NOT_FOUND") throw error;
    program.addHelpText("after", `\nnpm install ${CLIENT} adds the verbs that use a server.\n`);
  }
}

/** A configuration stands behind the names of a plugin's verb and action, or after --help. */
function isFile(path: string | undefined): boolean {
  return path !== undefined && (statSync(path, { throwIfNoEntry: false })?.isFile() ?? false);
}

async function reportProblems(verb: string, run: () => Promise<number>): Promise<number> {
  try {
    return await run();
  } catch (error) {
    // Commander has told it already.
    if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : EXIT_USAGE;
    if (isUsageError(error)) {
      printFailure(error.message);
      process.stderr.write(`coppice ${verb} --help shows its options\n`);
      return EXIT_USAGE;
    }
    if (error instanceof SandboxError || error instanceof ApiFailure) {
      printFailure(error.message);
      return 1;
    }
    if (!(error instanceof BootError)) throw error;
    const failed = verb === "start" ? "cannot start" : "cannot use this configuration";
    process.stderr.write(`coppice: ${failed}\n${error.message.replace(/^/gm, "  ")}\n`);
    return EXIT_CONFIG;
  }
}

function version(): string {
  return `${CORE.version} (${CORE.commit === undefined ? "a checkout" : `commit ${CORE.commit.slice(0, 12)}`})`;
}
