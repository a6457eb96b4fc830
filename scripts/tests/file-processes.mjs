// The processes of test files, as their runner sees them: which run, how long, and an end for those that have none.
import { subscribe } from "node:diagnostics_channel";
import { outputOf } from "../toolchain/step.mjs";

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
export function followFiles({ files, limitMs, graceMs = GRACE_MS, warn }) {
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
