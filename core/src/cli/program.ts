import { Command, type CommandUnknownOpts, type Option } from "@commander-js/extra-typings";
import { completion, SHELLS } from "./completion.js";

type Action<A extends readonly unknown[]> = (...args: A) => number | Promise<number>;

/** An action of a command: loads its file when it runs, and what it returns is the exit code. */
function lazily<A extends readonly unknown[]>(load: () => Promise<Action<A>>): (...args: A) => Promise<void> {
  return async (...args) => {
    process.exitCode = await (await load())(...args);
  };
}

/** A command whose options each have an environment variable: `--ttl` of `run` has COPPICE_RUN_TTL. */
class Verb extends Command {
  override createCommand(name?: string): Command {
    return new Verb(name);
  }

  override addOption(option: Option): never {
    const path = [...pathOf(this), option.name()];
    if (option.envVar === undefined) option.env(path.join("_").replaceAll("-", "_").toUpperCase());
    return super.addOption(option) as never;
  }
}

/** The names of a command and those above it, the program's first. */
function pathOf(command: Verb): readonly string[] {
  return [...(command.parent === null ? [] : pathOf(command.parent as Verb)), command.name()];
}

/** True for a verb that plugins may add actions to: it takes no words of its own. */
export function takesActions({ registeredArguments, commands }: CommandUnknownOpts): boolean {
  return registeredArguments.length === 0 && commands.length === 0;
}

const EXIT_CODES = `
Exit codes:
  0 done  1 failed  2 no such sandbox  64 wrong arguments  78 wrong configuration
  125 'exec' could not run the program, else its own code  130 interrupted  141 the reader has gone
`;

/** The command line with the verbs of core. */
export function makeProgram(version: string): Command {
  const program = new Verb("coppice")
    .description("Runs sandboxes for AI agents: serves them, and uses those of a server.")
    .version(`coppice ${version}`, "--version", "prints the version")
    .helpOption("-h, --help", "shows options and examples")
    .helpCommand(false)
    .enablePositionalOptions()
    .exitOverride()
    .configureHelp({ showGlobalOptions: false })
    .configureOutput({
      outputError: (text, write) => write(text.replace(/^error: /, "coppice: ")),
    })
    .addHelpText("after", EXIT_CODES);
  const onConfig = (name: string, text: string) =>
    program
      .command(name)
      .helpGroup("Server:")
      .description(text)
      .argument("<config.yaml>", "its configuration")
      .addHelpText("after", `\nExample:\n  coppice ${name} coppice.yaml`);
  onConfig("start", "serves a configuration until a signal").action(
    lazily(async () => (await import("./start.js")).start),
  );
  onConfig("dev", "serves a configuration, and again when it or a plugin of others changes").action(
    lazily(async () => (await import("./dev.js")).dev),
  );
  onConfig("check", "reports every problem of a configuration, without serving it")
    .option("--json", "prints JSON")
    .action(lazily(async () => (await import("./check.js")).check));
  onConfig("doctor", "tries all that a start would, and lists what this host lacks")
    .option("--json", "prints JSON")
    .action(lazily(async () => (await import("./doctor.js")).doctor));
  onConfig("plugins", "lists the plugins of a configuration in their order")
    .option("--json", "prints JSON")
    .action(lazily(async () => (await import("./plugins.js")).plugins));
  onConfig("end-sandboxes", "ends all that a stopped server has kept, before it is removed").action(
    lazily(async () => (await import("./end-sandboxes.js")).endSandboxes),
  );
  program
    .command("backup")
    .helpGroup("Server:")
    .description("keeps the data of a server, which may run, in an archive")
    .argument("<config.yaml>", "its configuration")
    .argument("<archive.tar>", "replaced when it exists")
    .addHelpText("after", "\nExample:\n  coppice backup coppice.yaml coppice-backup.tar")
    .action(lazily(async () => (await import("./backup.js")).backup));
  program
    .command("restore")
    .helpGroup("Server:")
    .description("puts the data of an archive into the data directory of a stopped server")
    .argument("<config.yaml>", "its configuration")
    .argument("<archive.tar>", "made by 'coppice backup'")
    .option("--force", "also when there is data, which is kept beside it")
    .addHelpText("after", "\nExample:\n  coppice restore coppice.yaml coppice-backup.tar")
    .action(lazily(async () => (await import("./restore.js")).restore));
  program
    .command("conform")
    .helpGroup("Server:")
    .description("runs the conformance suite on the backends of a plugin")
    .argument("[module]", "name of a plugin, or a path")
    .argument("[settings]", "its settings in JSON", "{}")
    .option("--limits <names>", "limits that it has, with commas; '' for none")
    .option("--only <text>", "takes the cases with this text in 'group: name'")
    .option("--list", "prints the cases and what they need, and runs none")
    .option("--json", "prints each case as a line of JSON")
    .addHelpText(
      "after",
      "\nExamples:\n  coppice conform ./my-backend --only 'files: '\n  coppice conform --list",
    )
    .action(lazily(async () => (await import("./conform.js")).conform));
  program
    .command("tls")
    .helpGroup("Server:")
    .description("makes certificates")
    .command("init")
    .description("makes an authority, and a wildcard certificate of a domain or one of an address")
    .argument("<domain or address>")
    .argument("[folder]", "where it writes them", ".coppice/tls")
    .addHelpText("after", "\nExample:\n  coppice tls init sandboxes.localhost")
    .action(lazily(async () => (await import("./tls.js")).tls));
  program
    .command("completion")
    .helpGroup("Server:")
    .description("prints a script that completes verbs and options in a shell")
    .argument(`<${SHELLS.join("|")}>`)
    .addHelpText(
      "after",
      "\nExamples:\n  source <(coppice completion bash)\n  coppice completion fish > ~/.config/fish/completions/coppice.fish",
    )
    .action(lazily(async () => completion));
  return program;
}
