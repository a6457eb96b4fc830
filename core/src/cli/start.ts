import { boot, type Server } from "../boot/boot.js";
import { readConfig } from "../config/read.js";
import { BootError, messageOf } from "../kernel/errors.js";
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
  let isReloadWanted = false;
  let isReloading = false;
  let isBroken = false;

  const stop = (running: Server): void => {
    if (isStopping) return;
    isStopping = true;
    isReloadWanted = false;
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

  /** Reads the configuration as often as it is asked to, but once for all that ask meanwhile. */
  const reload = async (running: Server): Promise<void> => {
    if (isReloading || !isReloadWanted) return;
    isReloading = true;
    void manager.reloading();
    let isUsed = true;
    while (isReloadWanted) {
      isReloadWanted = false;
      isUsed = await reloadConfiguration(running, file);
    }
    isReloading = false;
    if (!isStopping)
      void manager.ready(running.log, isUsed ? "serving" : "serving; the last reload failed, see the log");
  };

  /** The terminal was closed, or a service manager asks to reload the configuration. */
  const onHangUp = (signal: NodeJS.Signals): void => {
    if (hasTerminal) {
      if (server === undefined) process.exit(129);
      onSignal(signal);
    } else if (!isStopping) {
      // A server that starts has read a file that may have changed since: it reloads once it serves.
      isReloadWanted = true;
      if (server !== undefined) void reload(server);
    }
  };

  process.on("uncaughtException", onError);
  process.on("unhandledRejection", onError);
  // Without a handler it would end a server that starts.
  process.on("SIGHUP", onHangUp);
  try {
    server = await boot({
      config: readConfig(file, process.env),
      logTo: process.stdout.isTTY ? readableLog(process.stdout) : undefined,
    });
    process.on("SIGINT", onSignal);
    process.on("SIGTERM", onSignal);
    process.stderr.write(greetingOf(server));
    void manager.ready(server.log, "serving");
    const serving = server;
    const stopServing = (): void => stop(serving);
    if (until?.aborted === true) stopServing();
    else until?.addEventListener("abort", stopServing, { once: true });
    void reload(serving);
    return await stopped;
  } finally {
    process.off("uncaughtException", onError);
    process.off("unhandledRejection", onError);
    process.off("SIGINT", onSignal);
    process.off("SIGTERM", onSignal);
    process.off("SIGHUP", onHangUp);
  }
}

/** @returns false when the file, or a part of it, could not be used. Never rejects. */
async function reloadConfiguration(server: Server, file: string): Promise<boolean> {
  const { log } = server;
  try {
    const { changed, restart, failed } = await server.reload(readConfig(file, process.env));
    log.info({ changed }, "configuration reloaded");
    if (restart.length > 0) log.warn({ settings: restart }, "changed settings that need a restart");
    for (const { plugin, error } of failed)
      log.error({ plugin, err: error }, "what has changed could not be taken over; the old stays in use");
    return failed.length === 0;
  } catch (error) {
    const problems = error instanceof BootError ? messageOf(error).split("\n") : [messageOf(error)];
    log.error({ problems }, "the configuration cannot be used: nothing of it is reloaded");
    return false;
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
