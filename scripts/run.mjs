// Runs one verb of package.json's scripts: `node scripts/run.mjs <verb> [arguments]`.
// Everything in scripts/ has no dependencies and runs on Node 18, because it is what fetches the rest.
import { MissingPrerequisite } from "./toolchain/missing-prerequisite.mjs";
import { takeSetupLock } from "./toolchain/setup-lock.mjs";
import { FailedStep } from "./toolchain/step.mjs";

const VERBS = [
  "setup",
  "start",
  "demo",
  "test",
  "build",
  "lint",
  "format",
  "bench",
  "soak",
  "generate",
  "weigh",
];

const [verb, ...parameters] = process.argv.slice(2);
if (!VERBS.includes(verb)) {
  console.error(`usage: npm run ${VERBS.join("|")}`);
  process.exit(64);
}

try {
  await takeSetupLock();
  const { run } = await import(`./verbs/${verb}.mjs`);
  process.exitCode = (await run(parameters)) ?? 0;
} catch (error) {
  if (!(error instanceof MissingPrerequisite) && !(error instanceof FailedStep)) throw error;
  console.error(`coppice: ${error.message}`);
  process.exitCode = 1;
}
