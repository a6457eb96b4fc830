// Loaded into each process of a test file: writes down what processor time it and its children took, as it ends.
import { appendFileSync, readFileSync } from "node:fs";
import { isMainThread } from "node:worker_threads";

const TICKS_PER_SECOND = 100;

/** Of the children that this process has waited for, in seconds; Linux alone tells. */
function cpuOfChildren() {
  try {
    // The name of the program, in brackets before the numbers, may have blanks.
    const numbers = readFileSync("/proc/self/stat", "utf8")
      .replace(/^.*\) /s, "")
      .split(" ");
    return (Number(numbers[13]) + Number(numbers[14])) / TICKS_PER_SECOND;
  } catch {
    return 0;
  }
}

const path = process.env.COPPICE_TEST_CPU_FILE;
if (isMainThread && process.env.NODE_TEST_CONTEXT?.startsWith("child") && path !== undefined) {
  // Not for the servers that the file starts: it counts them among its children.
  delete process.env.COPPICE_TEST_CPU_FILE;
  process.once("exit", () => {
    const { user, system } = process.cpuUsage();
    appendFileSync(path, `${process.argv[1]}\t${(user + system) / 1e6 + cpuOfChildren()}\n`);
  });
}
