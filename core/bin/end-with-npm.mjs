const POLL_MS = 500;

/**
 * Ends this process with npm. npm starts a program by a shell, and the shell passes no signal on: a SIGTERM ends npm
 * and the shell, and the program would go on serving. A changed parent process stands for the lost SIGTERM.
 */
export function endWithNpm() {
  if (process.env.npm_command === undefined) return;
  const parent = process.ppid;
  const timer = setInterval(() => {
    if (process.ppid === parent) return;
    clearInterval(timer);
    process.kill(process.pid, "SIGTERM");
  }, POLL_MS).unref();
}
