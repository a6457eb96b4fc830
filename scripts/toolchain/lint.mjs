import { join } from "node:path";
import { ROOT } from "./project.mjs";
import { allOf, FailedStep, mustRunStep } from "./step.mjs";

const bin = (name, path) => join(ROOT, "node_modules", name, "bin", path);
const LINTER = bin("oxlint", "oxlint");
const FORMATTER = bin("oxfmt", "oxfmt");
const API_EXTRACTOR = bin("@microsoft/api-extractor", "api-extractor");

/** @throws FailedStep on FreeBSD, unless the tool has a binary for it on this processor. */
export function requireBinary(tool, processors = []) {
  if (process.platform === "freebsd" && !processors.includes(process.arch))
    throw new FailedStep(`${tool} has no binary for FreeBSD on ${process.arch}: use another system`);
}

/** Needs the build: the type-aware rules read the declarations of other packages. */
export async function lint(toolchain, parameters = []) {
  if (process.platform === "freebsd") {
    console.log("Nothing is checked: the linter's rules about types have no binary for FreeBSD.");
    return;
  }
  const options = { env: toolchain.environment };
  const rules = ["--type-aware", "--deny-warnings", ...parameters];
  await mustRunStep("lint", toolchain.node, [LINTER, ...rules], options);
  // Each of these has one thread, most of the time.
  await allOf([
    mustRunStep(
      "the format check (fix: npm run format)",
      toolchain.node,
      [FORMATTER, "--check", "."],
      options,
    ),
    checkInterface(toolchain, false),
    checkManuals(toolchain, false),
  ]);
}

/** Formats in place. */
export function format(toolchain, paths = []) {
  const parameters = [FORMATTER, ...(paths.length > 0 ? paths : ["."])];
  return mustRunStep("formatting", toolchain.node, parameters, { env: toolchain.environment });
}

/**
 * Compares the public interfaces of core and of the conformance kit with the committed reports `*.api.md`, so that no
 * change goes unnoticed.
 * With `isUpdate` it writes the reports.
 */
export async function checkInterface(toolchain, isUpdate) {
  const what = isUpdate
    ? "writing the reports *.api.md"
    : "the check of the reports *.api.md (fix: npm run generate)";
  for (const config of [
    "core/api-extractor.json",
    "core/api-extractor.testing.json",
    "conformance/api-extractor.json",
  ]) {
    const parameters = [API_EXTRACTOR, "run", "--config", config, ...(isUpdate ? ["--local"] : [])];
    await mustRunStep(what, toolchain.node, parameters, { env: toolchain.environment });
  }
}

/**
 * Compares config/default.yaml, config/schema.json, docs/errors.md, the routes in docs/commands-v1.md and the files in
 * docs/map.md with the code, and docs/measurements.md with its rows. With `isUpdate` it writes them.
 */
export async function checkManuals(toolchain, isUpdate) {
  const what = isUpdate
    ? "writing config/ and the generated parts of docs/"
    : "the check of the manuals (fix: npm run generate)";
  for (const script of ["generate-config.mjs", "generate-docs.mjs", "generate-map.mjs"]) {
    const parameters = [join(ROOT, "scripts", script), ...(isUpdate ? [] : ["--check"])];
    await mustRunStep(what, toolchain.node, parameters, { env: toolchain.environment });
  }
}
