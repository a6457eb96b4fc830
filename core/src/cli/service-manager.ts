// oxlint-disable-next-line no-restricted-imports -- systemd's own program, and none of a sandbox
import { execFile } from "node:child_process";
import type { Logger } from "../observe/logger.js";

/**
 * Tells systemd the state of this process, as sd_notify(3) has it. Its own program sends the messages: Node.js has no
 * datagram sockets in the file system. Without effect where no service manager asks for them.
 */
export class ServiceManager {
  readonly #socket: string | undefined;
  readonly #watchdogMs: number;
  #watchdog: NodeJS.Timeout | undefined;
  #log: Logger | undefined;
  /** Messages arrive in the order in which they were sent. */
  #sent: Promise<void> = Promise.resolve();

  /** @param env of this process. Its variables of the service manager are removed: programs that the server starts must not have them. */
  constructor(env: NodeJS.ProcessEnv) {
    const { NOTIFY_SOCKET: socket, WATCHDOG_USEC: microseconds, WATCHDOG_PID: pid } = env;
    this.#socket = socket;
    const isMeant = pid === undefined || Number(pid) === process.pid;
    this.#watchdogMs = isMeant ? Number(microseconds ?? 0) / 1000 : 0;
    for (const name of ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"]) delete env[name];
  }

  /** The server answers requests. From now on it has to prove it within the time of the unit's `WatchdogSec`. */
  ready(log: Logger, status: string): Promise<void> {
    this.#log = log;
    // A loop that hangs sends nothing.
    if (this.#watchdogMs > 0)
      this.#watchdog ??= setInterval(() => void this.#send("WATCHDOG=1"), this.#watchdogMs / 3).unref();
    return this.#send("READY=1", `STATUS=${status}`);
  }

  /** `ready` follows. */
  reloading(): Promise<void> {
    return this.#send("RELOADING=1");
  }

  /** The server ends its requests, and answers no new ones. */
  stopping(): Promise<void> {
    clearInterval(this.#watchdog);
    return this.#send("STOPPING=1");
  }

  async #send(...states: readonly string[]): Promise<void> {
    const socket = this.#socket;
    if (socket === undefined) return;
    this.#sent = this.#sent
      .then(() => notify(socket, states))
      .catch((error: unknown) => {
        this.#log?.warn({ err: error }, "the service manager could not be told of the server's state");
      });
    return this.#sent;
  }
}

function notify(socket: string, states: readonly string[]): Promise<void> {
  return new Promise((resolve, reject) => {
    const env = { ...process.env, NOTIFY_SOCKET: socket };
    execFile("systemd-notify", states, { env, timeout: 10_000 }, (error) => {
      if (error === null) resolve();
      else reject(new Error(error.message));
    });
  });
}
