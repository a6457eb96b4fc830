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
  coppice <verb of a plugin> <action> <config.yaml> [options]
`;

/** sysexits.h: EX_USAGE, EX_CONFIG. */
const EXIT_USAGE = 64;
const EXIT_CONFIG = 78;

/** Runs the command line. @returns the exit code. */
export async function main(argv: readonly string[]): Promise<number> {
  const [name, ...args] = argv;
  const verb = name !== undefined && Object.hasOwn(VERBS, name) ? VERBS[name] : undefined;
  const isHelp = [name, args[0]].some((word) => word === "--help" || word === "-h");
  if (isHelp && name !== "sandbox") {
    process.stdout.write(USAGE);
    return 0;
  }
  const isOfPlugin = verb === undefined && name !== undefined && args.length > 1;
  if (verb === undefined && !isOfPlugin) {
    process.stderr.write(name === undefined ? USAGE : `coppice: there is no '${name}'\n${USAGE}`);
    return EXIT_USAGE;
  }
  try {
    if (verb === undefined) return await (await import("./cli/plugin-verb.js")).pluginVerb(name ?? "", args);
    return await (
      await verb.load()
    )(args);
  } catch (error) {
    if (!(error instanceof BootError)) throw error;
    process.stderr.write(`coppice: cannot start\n${error.message.replace(/^/gm, "  ")}\n`);
    return EXIT_CONFIG;
  }
}
