// Runs test files, several at a time and in the given order, and shows how far they are. It runs under the project's Node.
//
// usage: node run-files.mjs TASK     a file of JSON to which the results are added
import { readFile, writeFile } from "node:fs/promises";
import { run } from "node:test";
import { spec } from "node:test/reporters";
import { followFiles } from "./file-processes.mjs";
import { Progress } from "./progress.mjs";

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
const ended = new AbortController();
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => ended.abort());

const limit = new URL("file-limit.mjs", import.meta.url).href;
const events = run({
  files,
  concurrency: filesAtOnce,
  timeout: limitMs,
  execArgv: [`--import=${limit}`],
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
const seconds = [...processes.durationsMs].map(([file, ms]) => [file, ms / 1000]);
await writeFile(path, JSON.stringify({ ...task, failed: [...failed], failures, skipped, seconds }));
