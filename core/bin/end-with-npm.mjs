const POLL_MS = 500;

/**
 * npm starts a program by a shell, and the shell passes no signal on: a SIGTERM ends npm and the shell, and the program
 * is left to serve. It learns of that by having another parent, and takes it for the signal that it did not get.
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
