// Runs one verb of package.json's scripts: `node scripts/run.mjs <verb> [arguments]`.
// Everything in scripts/ has no dependencies and runs on Node 18, because it is what fetches the rest.
import { join, resolve } from "node:path";
import { ensureStartPackages } from "./toolchain/apt.mjs";
import { format, lint, requireBinary } from "./toolchain/lint.mjs";
import { build, prepare } from "./toolchain/prepare.mjs";
import { MissingPrerequisite, ROOT } from "./toolchain/project.mjs";
import { takeSetupLock } from "./toolchain/setup-lock.mjs";
import { FailedStep } from "./toolchain/step.mjs";

/** Young objects in 2 MiB at a time: less memory and shorter pauses, see docs/measurements.md. */
const NODE_OPTIONS = ["--max-semi-space-size=4"];
/** The C library has one heap, in place of one for each thread; see there, too. */
const ENVIRONMENT = { MALLOC_ARENA_MAX: "1" };

/** Loaded where it is used: set-up does without core. */
const runBuilt = async (...words) => (await import("./toolchain/run-built.mjs")).runBuilt(...words);
const ownVerb = (name) => async (parameters) => (await import(`./verbs/${name}.mjs`)).run(parameters);

const VERBS = {
  /** Fetches and builds everything that is missing. */
  async setup() {
    const toolchain = await prepare();
    await build(toolchain);
    const python = toolchain.environment.COPPICE_PYTHON ?? "of the templates";
    console.log(`Ready: node ${toolchain.node}, python ${python}`);
  },
  /** Serves `config/development.yaml`, or the configuration that is named. */
  start([config, ...more]) {
    // npm changes to the root of the project; the path is relative to npm's first directory.
    const from = process.env.INIT_CWD ?? process.cwd();
    const path = config === undefined ? join(ROOT, "config", "development.yaml") : resolve(from, config);
    return runBuilt("core/bin/coppice.mjs", ["start", path, ...more], {
      nodeOptions: NODE_OPTIONS,
      environment: ENVIRONMENT,
      ...(config === undefined && { ensureHostPackages: ensureStartPackages }),
    });
  },
  /** Runs the quickstart of examples/ against a server that it starts, and builds a template as `npm start` does. */
  demo: () => runBuilt("scripts/demo.mjs", [], { ensureHostPackages: ensureStartPackages }),
  test: ownVerb("test"),
  /** Compiles the sources that have changed. */
  build: async () => build(await prepare({ needsPython: false })),
  /** Checks for bugs, crossed boundaries, unformatted files and unrecorded changes of the public interface. */
  async lint(parameters) {
    const toolchain = await prepare({ needsPython: false });
    await build(toolchain);
    await lint(toolchain, parameters);
  },
  /** Formats every file, or the paths that are named. */
  async format(paths) {
    requireBinary("the formatter", ["x64"]);
    await format(await prepare({ needsPython: false }), paths);
  },
  /** Measures a running server over HTTP. */
  bench: (parameters) => runBuilt("bench/dist/run.js", parameters),
  /** Puts a server under mixed load, or a fleet under faults, and reports failures and leftovers. */
  soak: ([first, ...rest]) =>
    first === "fleet"
      ? runBuilt("bench/dist/fleet-faults/run.js", rest)
      : runBuilt("bench/dist/soak/run.js", first === undefined ? [] : [first, ...rest]),
  generate: ownVerb("generate"),
  weigh: ownVerb("weigh"),
  /** Builds the documentation as a site. */
  docs: (parameters) => runBuilt("scripts/docs-site.mjs", parameters),
  release: ownVerb("release"),
};

const [verb, ...parameters] = process.argv.slice(2);
if (!Object.hasOwn(VERBS, verb)) {
  console.error(`usage: npm run ${Object.keys(VERBS).join("|")}`);
  process.exit(64);
}

try {
  await takeSetupLock();
  process.exitCode = (await VERBS[verb](parameters)) ?? 0;
} catch (error) {
  if (!(error instanceof MissingPrerequisite) && !(error instanceof FailedStep)) throw error;
  console.error(`coppice: ${error.message}`);
  process.exitCode = 1;
}
