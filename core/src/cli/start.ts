import { boot, type Server } from "../boot/boot.js";
import { readConfig } from "../config/read.js";
import { messageOf } from "../kernel/errors.js";
import { currentOwner } from "../kernel/owner.js";
import { configArgument } from "./arguments/config-argument.js";

const TELL_MS = 1_000;
/** Time for a stopped server's process to end by itself. */
const EXIT_GRACE_MS = 3_000;

/** Serves a configuration until a signal or an uncaught error. */
export async function start(args: readonly string[]): Promise<number> {
  const running = new Running();
  running.listen();
  try {
    const server = await boot({ config: readConfig(configArgument(args), process.env) });
    return await running.serve(server);
  } finally {
    running.close();
  }
}

/** The process around a server: signals and uncaught errors. */
class Running {
  readonly #stopped = Promise.withResolvers<number>();
  // Read at once: after the terminal is closed, at SIGHUP, it would be false.
  readonly #hasTerminal = process.stdin.isTTY || process.stderr.isTTY;
  #server: Server | undefined;
  #isStopping = false;
  #isBroken = false;

  listen(): void {
    process.on("uncaughtException", this.#onError);
    process.on("unhandledRejection", this.#onError);
  }

  async serve(server: Server): Promise<number> {
    this.#server = server;
    process.on("SIGINT", this.#onSignal);
    process.on("SIGTERM", this.#onSignal);
    process.on("SIGHUP", this.#onHangUp);
    process.stderr.write(greetingOf(server));
    return this.#stopped.promise;
  }

  close(): void {
    process.off("uncaughtException", this.#onError);
    process.off("unhandledRejection", this.#onError);
    process.off("SIGINT", this.#onSignal);
    process.off("SIGTERM", this.#onSignal);
    process.off("SIGHUP", this.#onHangUp);
  }

  readonly #onSignal = (signal: NodeJS.Signals): void => {
    if (this.#isStopping) process.exit(signal === "SIGINT" ? 130 : 143);
    this.#server?.log.info({ signal }, "stopping; a second signal stops at once");
    this.#stop();
  };

  /** The terminal was closed, or a service manager asks to reload certificates. */
  readonly #onHangUp = (signal: NodeJS.Signals): void => {
    if (this.#hasTerminal) {
      this.#onSignal(signal);
      return;
    }
    const log = this.#server?.log;
    try {
      const listeners = this.#server?.reloadCertificates() ?? 0;
      if (listeners > 0) log?.info({ signal, listeners }, "certificates reloaded");
      else log?.info({ signal }, "there is nothing to reload: no listener has TLS");
    } catch (error) {
      log?.error({ signal, err: error }, "certificates could not be reloaded; the old ones stay in use");
    }
  };

  /**
   * Handles errors thrown outside of any request: in a timer, an event handler, an unawaited promise. The state that
   * they leave is unknown, so the server ends; the next one adopts its sandboxes.
   */
  readonly #onError = (error: unknown): void => {
    const plugin = currentOwner();
    this.#isBroken = true;
    if (this.#server === undefined) {
      const text = error instanceof Error ? (error.stack ?? error.message) : messageOf(error);
      process.stderr.write(
        `coppice: cannot start: plugin '${plugin}' failed outside of its start: ${text}\n`,
      );
      process.exit(1);
    }
    this.#server.log.fatal({ plugin, err: error }, "uncaught error: the server stops");
    if (this.#isStopping) return;
    // The same fault may keep the server from stopping.
    setTimeout(() => process.exit(1), this.#server.stopTimeoutMs).unref();
    this.#stop();
  };

  #stop(): void {
    const server = this.#server;
    if (server === undefined || this.#isStopping) return;
    this.#isStopping = true;
    const tell = (): void => {
      const { requests, drainTimeoutMs } = server;
      if (requests === 0) return;
      const what = requests === 1 ? "1 request" : `${requests} requests`;
      process.stderr.write(
        `Coppice waits for ${what}, ${drainTimeoutMs / 1000} s at most; a second signal (Ctrl-C) stops at once\n`,
      );
    };
    const telling = setTimeout(tell, TELL_MS);
    void server.stop().then(
      (failures) => {
        clearTimeout(telling);
        for (const { owner, error } of failures)
          server.log.error({ plugin: owner, err: error }, "stop went wrong");
        this.#stopped.resolve(failures.length === 0 && !this.#isBroken ? 0 : 1);
        setTimeout(() => {
          // A timer, socket or child process that a plugin left must not keep the process alive.
          const resources = process.getActiveResourcesInfo();
          server.log.error({ resources }, "something keeps the stopped server's process alive: it exits");
          process.exit();
        }, EXIT_GRACE_MS).unref();
      },
      // Expected never to reject.
      (error: unknown) => {
        server.log.error({ err: error }, "stop went wrong");
        this.#stopped.resolve(1);
      },
    );
  }
}

/** Addresses of the server and lines of its plugins. To stderr: stdout carries the log. */
function greetingOf({ listeners, greeting }: Server): string {
  const addresses = listeners.map(({ name, url }) => `  ${name.padEnd(6)} ${url}\n`).join("");
  return `Coppice serves\n${addresses}${greeting.map((line) => `${line}\n`).join("")}`;
}
