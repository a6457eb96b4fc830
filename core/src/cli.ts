import { existsSync, readFileSync } from "node:fs";
import { asksForHelp, isUsageError, UsageError } from "./cli/arguments.js";
import { didYouMean } from "./kernel/did-you-mean.js";
import { BootError } from "./kernel/errors.js";

/** A verb of the command line, in a file of its own in `cli/`. Resolves with the exit code. */
type Verb = (args: readonly string[]) => Promise<number>;

const VERBS: Readonly<Record<string, { readonly usage: string; readonly load: () => Promise<Verb> }>> = {
  start: { usage: "start <config.yaml>", load: async () => (await import("./cli/start.js")).start },
  check: { usage: "check <config.yaml>", load: async () => (await import("./cli/check.js")).check },
  doctor: { usage: "doctor <config.yaml>", load: async () => (await import("./cli/doctor.js")).doctor },
  plugins: { usage: "plugins <config.yaml>", load: async () => (await import("./cli/plugins.js")).plugins },
  conform: {
    usage: "conform <module> [settings as JSON] [--limits <name,…>] [--only <text>]",
    load: async () => (await import("./cli/conform.js")).conform,
  },
  sandbox: {
    usage: "sandbox create|list|exec|logs|kill [--url …] [--key …] …",
    load: async () => (await import("./cli/sandbox.js")).sandbox,
  },
  tls: {
    usage: "tls init <domain or address> [folder]",
    load: async () => (await import("./cli/tls.js")).tls,
  },
};

const USAGE = `usage:\n${Object.values(VERBS)
  .map(({ usage }) => `  coppice ${usage}`)
  .join("\n")}
  coppice keys|audit|<verb of a plugin> <action> <config.yaml> [options]
  coppice --version
  coppice --help [config.yaml]             with a configuration: the verbs of its plugins, too
  coppice <verb> … [config.yaml] --help    its options; those of a plugin's verb with a configuration
`;

/** sysexits.h: EX_USAGE, EX_CONFIG. */
const EXIT_USAGE = 64;
const EXIT_CONFIG = 78;
/** 128 and SIGPIPE. */
const EXIT_BROKEN_PIPE = 141;

export async function main(argv: readonly string[]): Promise<number> {
  const [name, ...args] = argv;
  const verb = verbNamed(name);
  // Ends quietly when the reader of the output has gone, as with `| head`; not a server, which stops in order.
  if (name !== "start") process.stdout.on("error", () => process.exit(EXIT_BROKEN_PIPE));
  if (name === "--version") {
    process.stdout.write(`coppice ${version()}\n`);
    return 0;
  }
  // A plugin's verb shows its options only with a configuration, which names the plugins.
  if (asksForHelp(argv) && (name !== "sandbox" || args.length === 0)) return help(argv);
  const isOfPlugin = verb === undefined && name !== undefined && args.length > 1;
  if (verb === undefined && !isOfPlugin) {
    const hint =
      didYouMean(name ?? "", Object.keys(VERBS)) ||
      `; if it is a plugin's, name an action and a configuration: coppice ${name} <action> <config.yaml>`;
    process.stderr.write(name === undefined ? USAGE : `coppice: there is no '${name}'${hint}\n${USAGE}`);
    return EXIT_USAGE;
  }
  return reportProblems(name, async () =>
    verb === undefined
      ? (await import("./cli/plugin-verb.js")).pluginVerb(name ?? "", args)
      : (await verb.load())(args),
  );
}

/** Prints the usage of one verb or of all; with a configuration also that of its plugins' verbs. */
async function help(argv: readonly string[]): Promise<number> {
  const words = argv.filter((word) => !asksForHelp([word]));
  const [name] = words;
  const file = verbNamed(name) ? undefined : words.find((word) => existsSync(word));
  if (file === undefined) {
    process.stdout.write(usageOf(name));
    return 0;
  }
  const verb = words.slice(0, words.indexOf(file));
  return reportProblems(name, async () => {
    const lines = await (await import("./cli/plugin-verb.js")).pluginVerbUsage(file, verb);
    const head = verb.length === 0 ? USAGE : "usage:\n";
    process.stdout.write(head + lines.map((line) => `${line}\n`).join(""));
    return 0;
  });
}

function verbNamed(name: string | undefined) {
  return name !== undefined && Object.hasOwn(VERBS, name) ? VERBS[name] : undefined;
}

/** The usage of a verb of core; of all verbs when the name is none of core's. */
function usageOf(name: string | undefined): string {
  const verb = verbNamed(name);
  return verb === undefined ? USAGE : `usage:\n  coppice ${verb.usage}\n`;
}

async function reportProblems(verb: string | undefined, run: () => Promise<number>): Promise<number> {
  try {
    return await run();
  } catch (error) {
    if (isUsageError(error)) {
      const usage = error instanceof UsageError ? error.usage : undefined;
      process.stderr.write(`coppice: ${error.message}\n${usage ?? usageOf(verb)}`);
      return EXIT_USAGE;
    }
    if (!(error instanceof BootError)) throw error;
    const failed = verb === "start" ? "cannot start" : "cannot use this configuration";
    process.stderr.write(`coppice: ${failed}\n${error.message.replace(/^/gm, "  ")}\n`);
    return EXIT_CONFIG;
  }
}

function version(): string {
  const about = readFileSync(new URL("../package.json", import.meta.url), "utf8");
  return (JSON.parse(about) as { readonly version: string }).version;
}
