import { readFileSync } from "node:fs";
import { asksForHelp } from "./cli/asks-for-help.js";
import { BootError } from "./kernel/errors.js";

/** A verb of the command line: one file each in `cli/`. Resolves with the exit code. */
type Verb = (args: readonly string[]) => Promise<number>;

const VERBS: Readonly<Record<string, { readonly usage: string; readonly load: () => Promise<Verb> }>> = {
  start: { usage: "start <config.yaml>", load: async () => (await import("./cli/start.js")).start },
  check: { usage: "check <config.yaml>", load: async () => (await import("./cli/check.js")).check },
  doctor: { usage: "doctor <config.yaml>", load: async () => (await import("./cli/doctor.js")).doctor },
  plugins: { usage: "plugins <config.yaml>", load: async () => (await import("./cli/plugins.js")).plugins },
  conform: {
    usage: "conform <module> [settings as JSON]",
    load: async () => (await import("./cli/conform.js")).conform,
  },
  sandbox: {
    usage: "sandbox create|list|exec|logs|kill [--url …] [--key …] …",
    load: async () => (await import("./cli/sandbox.js")).sandbox,
  },
  tls: { usage: "tls init <domain> [folder]", load: async () => (await import("./cli/tls.js")).tls },
};

const USAGE = `usage:\n${Object.values(VERBS)
  .map(({ usage }) => `  coppice ${usage}`)
  .join("\n")}
  coppice keys|audit|<verb of a plugin> <action> <config.yaml> [options]
  coppice --version
  coppice --help [config.yaml]    with a configuration: the verbs of its plugins, too
  coppice <verb> … --help         its options
`;

/** sysexits.h: EX_USAGE, EX_CONFIG. */
const EXIT_USAGE = 64;
const EXIT_CONFIG = 78;

/** Runs the command line. @returns the exit code. */
export async function main(argv: readonly string[]): Promise<number> {
  const [name, ...args] = argv;
  const verb = name !== undefined && Object.hasOwn(VERBS, name) ? VERBS[name] : undefined;
  if (name === "--version") {
    process.stdout.write(`coppice ${version()}\n`);
    return 0;
  }
  // A plugin's verb tells its options where a configuration says which plugins there are.
  const isHelp =
    asksForHelp(argv.slice(0, 1)) || (name !== "sandbox" && asksForHelp(args.slice(0, verb ? undefined : 2)));
  if (isHelp) return help(argv);
  const isOfPlugin = verb === undefined && name !== undefined && args.length > 1;
  if (verb === undefined && !isOfPlugin) {
    process.stderr.write(name === undefined ? USAGE : `coppice: there is no '${name}'\n${USAGE}`);
    return EXIT_USAGE;
  }
  return explained(name, async () =>
    verb === undefined
      ? (await import("./cli/plugin-verb.js")).pluginVerb(name ?? "", args)
      : (await verb.load())(args),
  );
}

/** Prints how a verb is called, or all of them; with a configuration also those of its plugins. */
function help([name = "", ...args]: readonly string[]): Promise<number> {
  const verb = Object.hasOwn(VERBS, name) ? VERBS[name] : undefined;
  process.stdout.write(verb === undefined ? USAGE : `usage:\n  coppice ${verb.usage}\n`);
  return explained(name, async () => {
    const [file] = args;
    if (!asksForHelp([name]) || file === undefined) return 0;
    const usage = await (await import("./cli/plugin-verb.js")).pluginVerbUsage(file);
    process.stdout.write(usage.map((line) => `${line}\n`).join(""));
    return 0;
  });
}

/** Tells what is wrong with a configuration. */
async function explained(verb: string | undefined, run: () => Promise<number>): Promise<number> {
  try {
    return await run();
  } catch (error) {
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
