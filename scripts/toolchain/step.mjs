import { spawn, spawnSync } from "node:child_process";
import { setTimeout as sleep } from "node:timers/promises";
import { ROOT } from "./project.mjs";

/** How often something is tried that a network can spoil, and what goes by in between. */
const ATTEMPTS = 3;
const PAUSE_MS = 5_000;

/** A command of ours that said itself what went wrong. */
export class FailedStep extends Error {
  name = "FailedStep";
}

/**
 * Runs a command to its end, in the root of the project, with the terminal's own streams.
 * @returns its exit code; 127 when the program does not exist.
 */
export function runStep(command, parameters, options = {}) {
  return new Promise((resolve) => {
    const child = spawn(command, parameters, { cwd: ROOT, stdio: "inherit", ...options });
    child.on("error", () => resolve(127));
    child.on("close", (code) => resolve(code ?? 1));
  });
}

/**
 * As `runStep`, for what fetches: again when it failed, a few times in all, and each time that is said.
 * @param what names it.
 */
export async function runStepAgain(what, command, parameters, options) {
  for (let attempt = 1; ; attempt++) {
    const code = await runStep(command, parameters, options);
    if (code === 0 || code === 127 || attempt === ATTEMPTS) return code;
    console.error(`coppice: ${what} failed (exit code ${code}), attempt ${attempt} of ${ATTEMPTS}`);
    await sleep(PAUSE_MS * attempt);
  }
}

/** As `runStep`. @throws FailedStep that names `what` when the exit code is not 0. */
export async function mustRunStep(what, command, parameters, options) {
  const code = await runStep(command, parameters, options);
  if (code !== 0) throw new FailedStep(`${what} failed (exit code ${code})`);
}

/** Does something that takes its time, and says what, and how long it took. */
export async function told(what, run) {
  const startedMs = Date.now();
  console.log(`${what} …`);
  const result = await run();
  console.log(`${what}: ${((Date.now() - startedMs) / 1000).toFixed(1)} s`);
  return result;
}

/** Output of a short command; undefined when it fails or does not exist. */
export function outputOf(command, parameters, options = {}) {
  const { status, stdout } = spawnSync(command, parameters, {
    encoding: "utf8",
    stdio: ["ignore", "pipe", "ignore"],
    ...options,
  });
  return status === 0 ? stdout.trim() : undefined;
}
