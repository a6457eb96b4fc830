// Long parts of the tests that are left out while nothing that they are about has changed since they passed whole. What
// they passed with is committed (test/proven.txt): a fresh clone, without a history, knows it as well.
import { createHash } from "node:crypto";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { ROOT } from "../toolchain/project.mjs";
import { outputOf } from "../toolchain/step.mjs";
import { sourceOf, testFiles } from "./test-files.mjs";

const PROVEN = join(ROOT, "test", "proven.txt");
const HEAD = "# What parts of the tests last passed with in CI (scripts/tests/proven-parts.mjs).\n";
const STAND_INS = ["test/freebsd", "test/src/freebsd", "test/src/harness/freebsd"];
const JAILS = ["plugins/jail-freebsd", "core/src/sandbox/contract", "config/freebsd", ...STAND_INS];

/**
 * The parts, each with its files, the workspaces that have them, and what they are about. Of one, the main case always
 * runs; other files, whose text matches `shares`, leave out their share of it by its environment.
 */
const PARTS = [
  {
    name: "jails",
    files:
      /^test\/src\/freebsd\/(?:sandboxes\/(?!cycles)|faults\/(?:mishaps|recovery|reboot)|host\/(?:doctor|service))/,
    mainCase: "test/src/freebsd/sandboxes/conformance.test.ts",
    about: [...JAILS, "agent"],
    workspaces: ["agent", "test"],
    shares: /\bonJails\b|\["COPPICE_TEST_VARIANTS"\]|\breasonWithoutFreebsdHost\b/,
    environment: { COPPICE_TEST_VARIANTS: "main" },
  },
  {
    // What the commands of the host leave: hardly anything runs inside, so a change of the agent alone leaves it proven.
    name: "commands of jails",
    files:
      /^test\/src\/freebsd\/(?:sandboxes\/cycles|faults\/(?:faults|\w+-faults)|host\/(?:network-)?stand-ins)/,
    about: JAILS,
    workspaces: ["test"],
  },
  {
    name: "platform",
    files: /^test\/src\/freebsd\/host\/platform/,
    workspaces: ["test"],
    about: ["agent", "core/src/sandbox/contract", "plugins/local-process", "plugins/files", ...STAND_INS],
  },
  {
    name: "set-up",
    files: /^test\/src\/freebsd\/host\/set-up/,
    workspaces: ["test"],
    about: ["scripts/toolchain", "package.json", "package-lock.json", "agent/native", ...STAND_INS],
  },
  {
    name: "virtual machine",
    files: /^test\/src\/freebsd\/host\/vm/,
    workspaces: ["test"],
    about: ["scripts/freebsd-vm.mjs", "scripts/freebsd-vm-steps.sh", "docs/freebsd.md", ...STAND_INS],
  },
  {
    name: "ordinary user",
    files: /^plugins\/linux-namespaces\/src\/(?:ordinary-user|launcher\/user-namespace|network\/uplink)\./,
    workspaces: ["plugins/linux-namespaces"],
    about: ["plugins/linux-namespaces", "agent", "core/src/sandbox/contract", "conformance"],
  },
  {
    name: "roots of Debian",
    files: /^plugins\/templates\/src\/(?:debian\/debian-pins|builds\/debian-root)\./,
    workspaces: ["plugins/templates"],
    about: ["plugins/templates/src", "scripts/toolchain/debian-sources.sh"],
  },
  {
    // That `base` is built of today's packages is shown by each demo on a bare machine.
    name: "recipes",
    files: /^test\/src\/e2e\/sdk\/recipes\./,
    workspaces: ["test"],
    about: [
      "templates",
      "scripts/release/template-images.mjs",
      "plugins/templates/src",
      "plugins/jupyter/src",
      "plugins/linux-namespaces/src",
      "scripts/toolchain/debian-sources.sh",
    ],
  },
];

/** Whether a test file is one of a part, or has a share of it. */
async function isOf({ files, shares }, file) {
  if (files.test(sourceOf(file))) return true;
  return shares !== undefined && shares.test(await readFile(file, "utf8"));
}

/** A digest of all that a part is about; undefined where this is no clone. */
async function digestOf(part) {
  const list = outputOf(
    "git",
    ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", ...part.about],
    {
      cwd: ROOT,
    },
  );
  if (list === undefined) return undefined;
  const digest = createHash("sha256");
  for (const path of list.split("\0").filter(Boolean).sort()) {
    const file = join(ROOT, path);
    // A file may be removed and not yet committed as such.
    const data = await readFile(file).catch(() => undefined);
    if (data === undefined) continue;
    // Other tests and manuals beside the code change nothing of what the part tries.
    const isBeside = /\.(?:test\.ts|md)$/.test(path) && !part.about.includes(path);
    if (isBeside && !(await isOf(part, file))) continue;
    digest.update(`${path}\0${data.length}\0`).update(data);
  }
  return digest.digest("hex");
}

async function provenDigests() {
  const text = await readFile(PROVEN, "utf8").catch(() => HEAD);
  const lines = text.slice(HEAD.length).split("\n").filter(Boolean);
  return new Map(lines.map((line) => line.split(": ")));
}

/**
 * Leaves out the parts of which nothing has changed, unless `isAll`.
 * @returns the files to run, those left out, the environment of the tests, and `record`.
 */
export async function withoutProven(files, isAll) {
  const known = await provenDigests();
  const whole = new Map();
  const leftOut = [];
  const environment = {};
  for (const part of PARTS) {
    const digest = await digestOf(part);
    if (isAll || digest === undefined || known.get(part.name) !== digest) whole.set(part, digest);
    else {
      const isLeftOut = (file) => part.files.test(sourceOf(file)) && sourceOf(file) !== part.mainCase;
      leftOut.push(...files.filter(isLeftOut));
      Object.assign(environment, part.environment);
    }
  }
  /**
   * Writes down what the parts passed with that have run whole, whatever became of other tests: in CI, where a test that
   * cannot run fails.
   */
  const record = async ({ failed, skipped }) => {
    if (process.env.CI !== "true") return;
    for (const [part, digest] of whole) {
      const havePassed = await Promise.all(
        (await testFiles(part.workspaces)).map(
          async (file) => !(await isOf(part, file)) || (files.includes(file) && !failed.includes(file)),
        ),
      );
      // Cases of the conformance suite are skipped by what a backend says that it can.
      const isSkipped = ({ file, test }) =>
        part.files.test(sourceOf(file)) && !file.includes("conformance") && !test.endsWith("(by hand alone)");
      if (digest !== undefined && havePassed.every(Boolean) && !skipped.some(isSkipped))
        known.set(part.name, digest);
    }
    const lines = [...known].map((each) => `${each.join(": ")}\n`);
    await writeFile(PROVEN, HEAD + lines.join(""));
  };
  return { files: files.filter((file) => !leftOut.includes(file)), leftOut, environment, record };
}

/** As `withoutProven`, but with the files of parts alone of which something has changed. */
export async function onlyUnproven(files) {
  const { files: left, ...rest } = await withoutProven(files, false);
  const known = await provenDigests();
  const unproven = [];
  for (const part of PARTS) {
    if (known.get(part.name) === (await digestOf(part))) continue;
    for (const file of left) if (await isOf(part, file)) unproven.push(file);
  }
  return { ...rest, files: left.filter((file) => unproven.includes(file)) };
}
