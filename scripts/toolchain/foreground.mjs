import { spawn } from "node:child_process";
import { endWithNpm } from "../../core/bin/end-with-npm.mjs";

const SIGNALS = ["SIGINT", "SIGTERM", "SIGHUP"];
const EXIT_CODES = { SIGHUP: 129, SIGINT: 130, SIGKILL: 137, SIGTERM: 143 };
/** Ctrl-C reaches this process from the terminal and again from npm. */
const SAME_PRESS_MS = 250;

/**
 * Runs a server in the foreground and hands every signal on to it once.
 *
 * It gets a process group of its own, so that the terminal's Ctrl-C does not reach it directly as well:
 * a second signal means "exit at once" to it. The IPC channel tells it when this process is gone.
 * @returns its exit code.
 */
export function runInForeground(command, parameters, options = {}) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, parameters, {
      stdio: ["ignore", "inherit", "inherit", "ipc"],
      detached: true,
      ...options,
    });
    let lastSignalAtMs = 0;
    const passOn = (signal) => {
      const nowMs = Date.now();
      if (nowMs - lastSignalAtMs < SAME_PRESS_MS) return;
      lastSignalAtMs = nowMs;
      child.kill(signal);
    };
    for (const signal of SIGNALS) process.on(signal, passOn);
    endWithNpm();
    const settle = () => SIGNALS.forEach((signal) => process.off(signal, passOn));
    child.on("error", (error) => {
      settle();
      reject(error);
    });
    child.on("close", (code, signal) => {
      settle();
      resolve(code ?? EXIT_CODES[signal] ?? 1);
    });
  });
}
