import { execFileSync } from "node:child_process";
import { markdownTable } from "../generated-file.mjs";
import { ROOT } from "../toolchain/project.mjs";

const CODE = /^(core|cli|coppice|agent|plugins|scripts)\/.*\.([cm]?[jt]s|c|h|py|sh)$/;
const GENERATED = /\/generated\//;
const TEST = /\.test\.ts$|\/testing\/|^(?:bench|conformance|test)\//;
/** Files below this many lines are often half of a concept. */
const SMALL_LINES = 40;
const MEBIBYTE = 2 ** 20;

const git = (parameters, input) =>
  execFileSync("git", parameters, { cwd: ROOT, input, maxBuffer: 512 * MEBIBYTE });

/** The code of a revision. @returns contents by path. */
function readTree(revision) {
  const entries = git(["ls-tree", "-r", "-z", revision])
    .toString()
    .split("\0")
    .filter(Boolean)
    .map((entry) => ({ hash: entry.split(/[ \t]/)[2], path: entry.slice(entry.indexOf("\t") + 1) }))
    .filter(
      ({ path }) =>
        (CODE.test(path) || /^(?:bench|conformance|test)\/.*\.ts$/.test(path)) && !GENERATED.test(path),
    );
  const output = git(["cat-file", "--batch"], entries.map(({ hash }) => `${hash}\n`).join(""));
  const files = new Map();
  let at = 0;
  for (const { path } of entries) {
    const end = output.indexOf("\n", at);
    const size = Number(output.toString("utf8", at, end).split(" ")[2]);
    files.set(path, output.toString("utf8", end + 1, end + 1 + size));
    at = end + 1 + size + 1;
  }
  return files;
}

const countLines = (text) => text.split("\n").length - 1;
const packageOf = (path) => /^plugins\/[^/]+|^[^/]+/.exec(path)[0];
const isSource = (path) => !TEST.test(path);

/** Files and lines of source and tests, by package and in all. */
function weighPackages(tree) {
  const packages = new Map();
  for (const [path, text] of tree)
    for (const name of [packageOf(path), "all"]) {
      const weight = packages.get(name) ?? { files: 0, lines: 0, tests: 0 };
      packages.set(name, weight);
      if (isSource(path)) weight.files++;
      weight[isSource(path) ? "lines" : "tests"] += countLines(text);
    }
  return packages;
}

/** Names that the source exports, each with the files that do. */
function exportedNames(tree) {
  const names = new Map();
  for (const [path, text] of tree) {
    if (!isSource(path) || !/\.[cm]?[jt]s$/.test(path)) continue;
    const exports = text.matchAll(
      /^export (?:async |abstract |declare )*(?:function\*?|class|const|let) (\w+)/gm,
    );
    for (const [, name] of exports) names.set(name, [...(names.get(name) ?? []), path]);
  }
  return names;
}

const nameOf = (declaration) => declaration.split(" ").at(-1);

/** Numbers that stand in files which `npm run generate` writes. */
function publicNumbers(revision) {
  const show = (path) => git(["show", `${revision}:${path}`]).toString();
  return {
    // A token is one name: the type of a service and its key.
    "exports of core": new Set(
      show("core/core.api.md")
        .match(/^export (?:abstract )?\w+ \w+/gm)
        ?.map(nameOf),
    ).size,
    "settings": show("config/schema.json").match(/"description":/g)?.length ?? 0,
  };
}

const signed = (number) => (number > 0 ? `+${number}` : String(number));

/** The lines of `git diff --numstat`, which a count of both trees cannot tell apart. */
function changedLines(base) {
  const changed = new Map();
  for (const line of git(["diff", "--numstat", "--no-renames", base, "HEAD"]).toString().split("\n")) {
    const [added, removed, path] = line.split("\t");
    if (path === undefined || !CODE.test(path) || GENERATED.test(path) || !isSource(path)) continue;
    for (const name of [packageOf(path), "all"]) {
      const before = changed.get(name) ?? [0, 0];
      changed.set(name, [before[0] + Number(added), before[1] + Number(removed)]);
    }
  }
  return changed;
}

function printList(title, lines) {
  if (lines.length === 0) return;
  console.log(`\n${title}:`);
  for (const line of lines) console.log(`  ${line}`);
}

/**
 * Prints what the commits since a revision weigh: lines by package, new exports of core and settings, small files, and
 * names that stand in a second file. Tests are `*.test.ts`, `testing/`, `test`, `bench` and
 * `conformance`; generated code does not count.
 */
export function run([base = "HEAD~1"]) {
  const [before, now] = [readTree(base), readTree("HEAD")];
  const [packagesBefore, packages] = [weighPackages(before), weighPackages(now)];
  const changed = changedLines(base);
  const rows = [...new Set([...packages.keys(), ...packagesBefore.keys()])]
    .sort((a, b) => a.localeCompare(b))
    .map((name) => {
      const nothing = { files: 0, lines: 0, tests: 0 };
      const [was, is] = [packagesBefore.get(name) ?? nothing, packages.get(name) ?? nothing];
      const [added, removed] = changed.get(name) ?? [0, 0];
      const cells = [
        is.lines,
        `+${added} −${removed}`,
        signed(is.lines - was.lines),
        is.files,
        signed(is.files - was.files),
      ];
      return [name, ...cells, is.tests, signed(is.tests - was.tests)].map(String);
    });
  console.log(`Since ${base}, without generated code:\n`);
  console.log(markdownTable(["package", "lines", "changed", "net", "files", "net", "tests", "net"], rows));
  const [numbersBefore, numbers] = [publicNumbers(base), publicNumbers("HEAD")];
  for (const [what, number] of Object.entries(numbers))
    console.log(`${what}: ${number} (${signed(number - numbersBefore[what])})`);

  const isSmall = (path, text) => isSource(path) && countLines(text) < SMALL_LINES;
  const added = [...now].filter(([path, text]) => isSmall(path, text) && !before.has(path));
  const all = [...now].filter(([path, text]) => isSmall(path, text)).length;
  console.log(`files below ${SMALL_LINES} lines: ${all}`);
  printList(
    `New files below ${SMALL_LINES} lines`,
    added.map(([path, text]) => `${path} (${countLines(text)})`),
  );

  const namesBefore = exportedNames(before);
  const twice = [...exportedNames(now)].filter(
    ([name, paths]) => paths.length > 1 && paths.length > (namesBefore.get(name)?.length ?? 0),
  );
  printList(
    "Exported by a second file, so perhaps a second way",
    twice.map(([name, paths]) => `${name}: ${paths.join(", ")}`),
  );
}
