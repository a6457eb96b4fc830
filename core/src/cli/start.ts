import { boot, type Server } from "../boot/boot.js";
import { readConfig } from "../config/read.js";
import { messageOf } from "../kernel/errors.js";
import { currentOwner } from "../kernel/owner.js";
import { ServiceManager } from "./service-manager.js";
import { readableLog } from "./terminal.js";

const TELL_MS = 1_000;
/** Time for a stopped server's process to end by itself. */
const EXIT_GRACE_MS = 3_000;

/** Serves a configuration until a signal or an uncaught error. @param options.until stops the server, too, once aborted. */
export async function start(file: string, { until }: { readonly until?: AbortSignal } = {}): Promise<number> {
  const { promise: stopped, resolve: exitWith } = Promise.withResolvers<number>();
  // Read at once: after the terminal is closed, at SIGHUP, it would be false.
  const hasTerminal = process.stdin.isTTY || process.stderr.isTTY;
  const manager = new ServiceManager(process.env);
  let server: Server | undefined;
  let isStopping = false;
  let isBroken = false;

  const stop = (running: Server): void => {
    if (isStopping) return;
    isStopping = true;
    void manager.stopping();
    const telling = setTimeout(() => tellWaiting(running), TELL_MS);
    void running.stop().then(
      (failures) => {
        clearTimeout(telling);
        for (const { owner, error } of failures)
          running.log.error({ plugin: owner, err: error }, "stop went wrong");
        exitWith(failures.length === 0 && !isBroken ? 0 : 1);
        setTimeout(() => {
          // A timer, socket or child process that a plugin left must not keep the process alive.
          const resources = process.getActiveResourcesInfo();
          running.log.error({ resources }, "something keeps the stopped server's process alive: it exits");
          process.exit();
        }, EXIT_GRACE_MS).unref();
      },
      // Expected never to reject.
      (error: unknown) => {
        running.log.error({ err: error }, "stop went wrong");
        exitWith(1);
      },
    );
  };

  /**
   * Handles errors thrown outside of any request: in a timer, an event handler, an unawaited promise. The state that
   * they leave is unknown, so the server ends; the next one adopts its sandboxes.
   */
  const onError = (error: unknown): void => {
    const plugin = currentOwner();
    isBroken = true;
    if (server === undefined) {
      const text = error instanceof Error ? (error.stack ?? error.message) : messageOf(error);
      process.stderr.write(
        `coppice: cannot start: plugin '${plugin}' failed outside of its start: ${text}\n`,
      );
      process.exit(1);
    }
    server.log.fatal({ plugin, err: error }, "uncaught error: the server stops");
    if (isStopping) return;
    // The same fault may keep the server from stopping.
    setTimeout(() => process.exit(1), server.stopTimeoutMs).unref();
    stop(server);
  };

  const onSignal = (signal: NodeJS.Signals): void => {
    if (isStopping) process.exit(signal === "SIGINT" ? 130 : 143);
    server?.log.info({ signal }, "stopping; a second signal stops at once");
    if (server !== undefined) stop(server);
  };

  /** The terminal was closed, or a service manager asks to reload certificates. */
  const onHangUp = (signal: NodeJS.Signals): void => {
    if (hasTerminal) onSignal(signal);
    else if (server !== undefined) {
      void manager.reloading();
      reloadCertificates(server, signal);
      void manager.ready(server.log, "serving");
    }
  };

  process.on("uncaughtException", onError);
  process.on("unhandledRejection", onError);
  try {
    server = await boot({
      config: readConfig(file, process.env),
      logTo: process.stdout.isTTY ? readableLog(process.stdout) : undefined,
    });
    process.on("SIGINT", onSignal);
    process.on("SIGTERM", onSignal);
    process.on("SIGHUP", onHangUp);
    process.stderr.write(greetingOf(server));
    void manager.ready(server.log, "serving");
    const serving = server;
    const stopServing = (): void => stop(serving);
    if (until?.aborted === true) stopServing();
    else until?.addEventListener("abort", stopServing, { once: true });
    return await stopped;
  } finally {
    process.off("uncaughtException", onError);
    process.off("unhandledRejection", onError);
    process.off("SIGINT", onSignal);
    process.off("SIGTERM", onSignal);
    process.off("SIGHUP", onHangUp);
  }
}

function reloadCertificates(server: Server, signal: NodeJS.Signals): void {
  const { log } = server;
  try {
    const listeners = server.reloadCertificates();
    if (listeners > 0) log.info({ signal, listeners }, "certificates reloaded");
    else log.info({ signal }, "there is nothing to reload: no listener has TLS");
  } catch (error) {
    log.error({ signal, err: error }, "certificates could not be reloaded; the old ones stay in use");
  }
}

function tellWaiting({ requests, drainTimeoutMs }: Server): void {
  if (requests === 0) return;
  const what = requests === 1 ? "1 request" : `${requests} requests`;
  process.stderr.write(
    `Coppice waits for ${what}, ${drainTimeoutMs / 1000} s at most; a second signal (Ctrl-C) stops at once\n`,
  );
}

/** Addresses of the server and lines of its plugins. To stderr: stdout carries the log. */
function greetingOf({ listeners, greeting }: Server): string {
  const width = Math.max(...listeners.map(({ name }) => name.length));
  const addresses = listeners.map(({ name, url }) => `  ${name.padEnd(width)} ${url}\n`).join("");
  return `Coppice serves\n${addresses}${greeting.map((line) => `${line}\n`).join("")}`;
}
