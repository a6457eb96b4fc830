// Runs test files, several at a time and in the given order, and shows how far they are. It runs under the project's Node.
//
// usage: node run-files.mjs TASK     a file of JSON to which the results are added
import { readFile, writeFile } from "node:fs/promises";
import { run } from "node:test";
import { spec } from "node:test/reporters";
import { subscribe } from "node:diagnostics_channel";
import { outputOf } from "../toolchain/step.mjs";
import { sourceOf } from "./test-files.mjs";

const EACH_MINUTE_MS = 60_000;
const RENEWED_EACH_MS = 1_000;
/** Files that run for less are not named in a log. */
const LONG_MS = 20_000;

/**
 * How far a run of test files is: on a terminal one line that renews itself below what failed, elsewhere a line each
 * minute between the lines of the tests.
 */
class Progress {
  #files;
  #processes;
  #isRenewed;
  #timer;
  #startedMs = Date.now();
  /** The number of files in which a test has failed. */
  failures = 0;

  /** @param isWhole false for named files, each test of which is shown on a terminal, too. */
  constructor({ files, processes, isWhole }) {
    this.#files = files;
    this.#processes = processes;
    this.#isRenewed = isWhole && process.stdout.isTTY;
    this.#timer = setInterval(() => this.#tell(), this.#isRenewed ? RENEWED_EACH_MS : EACH_MINUTE_MS);
    // Only the tests keep the process.
    this.#timer.unref();
  }

  /** Whether an event of node:test is worth its lines: on a terminal, where all is well, only the closing ones are. */
  shows(type, data) {
    if (!this.#isRenewed) return true;
    if (type === "test:diagnostic") return data.file === undefined;
    return type === "test:fail" || type === "test:summary" || type === "test:stderr";
  }

  print(text) {
    process.stdout.write(this.#isRenewed ? `\r\x1b[2K${text}` : text);
  }

  end() {
    clearInterval(this.#timer);
    this.print("");
  }

  #tell() {
    const nowMs = Date.now();
    const { startedMs, durationsMs } = this.#processes;
    const running = [...startedMs]
      .map(([file, startMs]) => ({ file, ms: nowMs - startMs }))
      .filter(({ ms }) => this.#isRenewed || ms > LONG_MS)
      .map(({ file, ms }) => `${Math.round(ms / 1000)} s ${sourceOf(file)}`);
    const line = [
      `${Math.floor((nowMs - this.#startedMs) / 60_000)} min, ${durationsMs.size} of ${this.#files} files`,
      this.failures === 0 ? "" : `, ${this.failures} failed`,
      running.length === 0 ? "" : `; running: ${running.join(", ")}`,
    ].join("");
    if (this.#isRenewed) this.print(line.slice(0, process.stdout.columns - 1));
    else this.print(`${line}\n`);
  }
}

/** A file ends itself at its limit (file-limit.mjs), unless its event loop is blocked. */
const GRACE_MS = 10_000;

/** A process and all that it started, as far as `ps` can tell. */
function family(pid) {
  const rows = (outputOf("ps", ["-A", "-o", "pid=,ppid="]) ?? "")
    .split("\n")
    .map((row) => row.trim().split(/\s+/));
  const found = [pid];
  for (const each of found)
    found.push(...rows.filter(([, parent]) => Number(parent) === each).map(([child]) => Number(child)));
  return found;
}

function kill(pid) {
  for (const each of family(pid)) {
    try {
      process.kill(each, "SIGKILL");
    } catch (error) {
      if (error.code !== "ESRCH") throw error;
    }
  }
}

/**
 * Follows the processes that this one starts for test files.
 * @param warn prints a line.
 * @returns the start of each running file, and the duration of each that has ended, in milliseconds.
 */
function followFiles({ files, limitMs, graceMs = GRACE_MS, warn }) {
  const startedMs = new Map();
  const durationsMs = new Map();
  // `run()` of node:test has no other way to its processes.
  subscribe("child_process", ({ process: child }) => {
    child.once("spawn", () => {
      const file = child.spawnargs.at(-1);
      if (!files.includes(file)) return;
      startedMs.set(file, Date.now());
      const blocked = setTimeout(() => {
        warn(`${file} did not end in ${limitMs / 1000} s, and its event loop is blocked: it was killed`);
        kill(child.pid);
      }, limitMs + graceMs);
      child.once("exit", () => {
        clearTimeout(blocked);
        durationsMs.set(file, Date.now() - startedMs.get(file));
        startedMs.delete(file);
        // The report of a file ends with its output, which a process that it left may hold.
        const held = setTimeout(() => {
          warn(`${file} left a process that holds its output`);
          for (const stream of [child.stdout, child.stderr]) stream.destroy();
        }, graceMs);
        child.once("close", () => clearTimeout(held));
      });
    });
  });
  return { startedMs, durationsMs };
}

const path = process.argv[2];
const task = JSON.parse(await readFile(path, "utf8"));
const { files, filesAtOnce, limitMs, graceMs, isWhole } = task;
const failed = new Set();
const failures = [];
const skipped = [];
/** Of the text of an error, in the list of failures. */
const MOST_LINES = 6;

function reasonOf(error) {
  const { failureType, cause } = error ?? {};
  // What is inside it says why.
  if (failureType === "subtestsFailed") return undefined;
  return String(cause?.stack ?? cause ?? error).split("\n", MOST_LINES);
}

const processes = followFiles({ files, limitMs, graceMs, warn: (line) => progress.print(`${line}\n`) });
const progress = new Progress({ files: files.length, processes, isWhole });
const report = new spec();
report.on("data", (text) => progress.print(String(text)));

process.env.COPPICE_TEST_FILE_LIMIT_MS = String(limitMs);
const cpuPath = `${path}.cpu`;
await writeFile(cpuPath, "");
process.env.COPPICE_TEST_CPU_FILE = cpuPath;
const ended = new AbortController();
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => ended.abort());

const preloaded = ["file-limit.mjs", "file-cpu.mjs"].map((name) => new URL(name, import.meta.url).href);
const events = run({
  files,
  concurrency: filesAtOnce,
  timeout: limitMs,
  execArgv: preloaded.map((url) => `--import=${url}`),
  signal: ended.signal,
});
for await (const { type, data } of events) {
  if (type === "test:fail" && data.todo === undefined) {
    // A test may be declared in another file than the one that runs it.
    failed.add(data.entryFile ?? data.file);
    progress.failures = failed.size;
    const reason = reasonOf(data.details?.error);
    if (reason !== undefined) failures.push({ file: data.entryFile ?? data.file, test: data.name, reason });
  }
  const kind = data.skip !== undefined ? "skipped" : data.todo !== undefined ? "todo" : undefined;
  if ((type === "test:pass" || type === "test:fail") && kind !== undefined) {
    const reason = data.skip ?? data.todo;
    const why = typeof reason === "string" && reason !== "" ? reason : "no reason given";
    skipped.push({ file: data.entryFile ?? data.file, test: `${kind}: ${data.name} (${why})` });
  }
  if (progress.shows(type, data)) report.write({ type, data });
}
progress.end();
await new Promise((resolve) => report.end(resolve));
if (ended.signal.aborted) process.exit(1);
const cpuRows = (await readFile(cpuPath, "utf8")).split("\n").filter(Boolean);
const cpuSeconds = new Map(cpuRows.map((row) => row.split("\t")));
// One that was killed has written nothing down.
const seconds = [...processes.durationsMs].map(([file, ms]) => [
  file,
  ms / 1000,
  Number(cpuSeconds.get(file) ?? 0),
]);
await writeFile(path, JSON.stringify({ ...task, failed: [...failed], failures, skipped, seconds }));
