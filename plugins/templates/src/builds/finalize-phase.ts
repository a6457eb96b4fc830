import { setTimeout as delay } from "node:timers/promises";
import { type Clock, messageOf, SandboxError, sleep } from "@coppice/core";
import type { Sandbox } from "@coppice/core/backend";
import { BuildFailure, type LogLevel } from "../model/build-record.js";
import type { Lock } from "../model/build-request.js";
import type { StartCommand } from "../model/layer.js";
import { differencesOf } from "../model/contents-lock.js";
import { makeAccount, makeWorkdir } from "../guest/accounts.js";
import { trustNewAuthorities } from "./authorities.js";
import { DEFAULT_USER } from "./base-phase.js";
import { baseKey, type BuildTools, durationText, type Progress } from "./build-tools.js";
import {
  commandEnvironment,
  CommandFailure,
  type ContextCommand,
  mustRunInContext,
} from "../guest/context-command.js";
import { failureText, runScript } from "../guest/guest-run.js";
import { withRoom } from "./with-room.js";

interface StartCommandRunOptions {
  readonly templateId: string;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  readonly print: (level: LogLevel, line: string) => void;
  /** Most time until the ready command succeeds. */
  readonly readyTimeoutMs: number;
}

const READY_PAUSE_MS = 2_000;
/** Time for the first output, so that it comes before what follows in the log. */
const FIRST_OUTPUT_MS = 1_000;
const MOST_PORTS = 64;

/** Prints the TCP ports that something listens on. */
const PRINT_PORTS = `
for file in /proc/net/tcp /proc/net/tcp6; do
  [ ! -r "$file" ] || while read -r _ local _ state _; do
    [ "$state" != 0A ] || echo $((16#\${local##*:}))
  done < "$file"
done
`;

/**
 * Runs a start command until its ready command succeeds, then ends it.
 * @returns the ports that it listened on.
 * @throws BuildFailure, the signal's reason
 */
async function runStartCommand(
  sandbox: Sandbox,
  start: StartCommand,
  options: StartCommandRunOptions,
): Promise<readonly number[]> {
  const { signal, print, templateId } = options;
  if (start.command === "") {
    await awaitReady(sandbox, start, options);
    return [];
  }
  const others = new Set(await listeningPorts(sandbox, signal));
  const stop = new AbortController();
  const failing = new AbortController();
  const first = Promise.withResolvers<void>();
  print("info", `Running start command: ${start.command}`);
  const running = mustRunInContext(sandbox, {
    ...commandOf(start, start.command),
    templateId,
    signal,
    stop: stop.signal,
    print: (level, line) => {
      print(level, line);
      first.resolve();
    },
    level: "info",
    prefix: "start",
  });
  const ended = running.catch((error: unknown) => {
    if (!stop.signal.aborted) failing.abort(error);
  });
  try {
    await Promise.race([first.promise, ended, delay(FIRST_OUTPUT_MS)]);
    const until = AbortSignal.any([signal, failing.signal]);
    await awaitReady(sandbox, start, { ...options, signal: until });
    until.throwIfAborted();
    return (await listeningPorts(sandbox, signal)).filter((port) => !others.has(port));
  } catch (error) {
    signal.throwIfAborted();
    if (!failing.signal.aborted) throw error;
    const { reason } = failing.signal;
    if (!(reason instanceof CommandFailure)) throw reason;
    const text = `start command failed: error running start command: ${reason.message}`;
    throw new BuildFailure(text, undefined, { cause: reason });
  } finally {
    stop.abort();
    await ended;
  }
}

async function awaitReady(
  sandbox: Sandbox,
  start: StartCommand,
  { clock, signal, print, templateId, readyTimeoutMs }: StartCommandRunOptions,
): Promise<void> {
  const { ready = "sleep 0" } = start;
  const late = AbortSignal.timeout(readyTimeoutMs);
  const until = AbortSignal.any([signal, late]);
  print("info", `Waiting for template to be ready: ${ready}`);
  for (;;) {
    try {
      const command = { ...commandOf(start, ready), templateId, signal: until, print };
      await mustRunInContext(sandbox, { ...command, level: "debug", prefix: "ready" });
      print("info", "Template is ready");
      return;
    } catch (error) {
      if (!until.aborted) {
        if (!(error instanceof CommandFailure)) throw error;
        print("debug", `Template is not ready: ${messageOf(error)}`);
        await sleep(clock, READY_PAUSE_MS, until).catch(() => undefined);
      }
      signal.throwIfAborted();
      if (!late.aborted) continue;
      const text = `ready command failed: ready command timed out after ${durationText(readyTimeoutMs)}`;
      throw new BuildFailure(text, undefined, { cause: error });
    }
  }
}

function commandOf(
  { user, workdir, environment }: StartCommand,
  line: string,
): Pick<ContextCommand, "line" | "context"> {
  return { line, context: { user, workdir, environment } };
}

async function listeningPorts(sandbox: Sandbox, signal: AbortSignal): Promise<readonly number[]> {
  const { stdout } = await runScript(sandbox, PRINT_PORTS, { args: [], signal });
  const ports = stdout.split("\n").map(Number);
  return [...new Set(ports)]
    .filter((port) => port > 0 && port < 65_536)
    .toSorted((a, b) => a - b)
    .slice(0, MOST_PORTS);
}

/** Ready command of a start command without one. */
const DEFAULT_READY = "sleep 20";
const SHOWN_DIFFERENCES = 5;

/**
 * Gives the home to its user, and lets everybody write where programs are installed. Of what is there only directories
 * are opened: a changed file would be kept a second time, and who may write to its directory can replace it.
 *
 * Parameter: the user.
 */
const SETTLE = `
mkdir -p "/home/$1" /usr/local /code || exit
if command -v find > /dev/null; then
  find "/home/$1" -xdev ! -user "$1" -exec chown -h "$1:" {} + &&
    find /usr/local /code -xdev -type d ! -perm 777 -exec chmod 777 {} +
else
  chown -R -h "$1:" "/home/$1" && chmod 777 /usr/local /usr/local/* /code
fi
`;

/** Ends a build: runs the start command once, and makes the last image. @throws as `startFrom` */
export async function finalize(before: Progress, tools: BuildTools): Promise<Progress> {
  const { workspace, signal, print, options } = tools;
  const { request, settings, clock } = options;
  const required = request.lock?.severity === "error" ? request.lock.contents : undefined;
  const key = baseKey("finalize", before.key, request.startCommand, request.readyCommand, required);
  const cached = tools.cached(key);
  tools.announce({
    prefix: "finalize",
    text: "Finalizing template build",
    key,
    isCached: cached !== undefined,
  });
  if (cached !== undefined) return cached;
  return withRoom(before, tools, async (below) => {
    await workspace.open(below.image);
    const sandbox = await workspace.sandbox();
    await makeAccount(sandbox, DEFAULT_USER, { isSudoer: true, signal });
    const settled = await runScript(sandbox, SETTLE, { args: [DEFAULT_USER], signal });
    if (settled.exit.code !== 0)
      throw new BuildFailure(`configuration script failed: ${failureText(settled)}`, "finalize");
    await trustNewAuthorities(sandbox, tools);
    let start = startOf(below, tools);
    // A step may have removed it, and the label of an image may name one that the image has not.
    for (const { user, workdir: path } of [below.context, ...(start === undefined ? [] : [start])]) {
      if (path === undefined) continue;
      await requireUser(sandbox, user);
      await makeWorkdir(sandbox, { path, user, signal });
    }
    if (start !== undefined) {
      const ports = await runStartCommand(sandbox, start, {
        templateId: request.templateId,
        clock,
        signal,
        print,
        readyTimeoutMs: settings.builds.readyTimeout,
      });
      start = start.command === "" ? undefined : { ...start, ports };
    }
    await requireUser(sandbox, below.context.user);
    const contents = await listContents(sandbox, signal);
    if (request.lock !== undefined) compareWithLock(contents, request.lock, tools);
    const made = await workspace.commit(below.bytes);
    options.surroundings.layers.describe(made.image, contents);
    return tools.keep({ ...made, key, context: below.context, start });
  });
}

/** @throws BuildFailure */
function compareWithLock(
  contents: readonly string[],
  { contents: locked, severity }: Lock,
  { print }: BuildTools,
): void {
  const differences = differencesOf(locked, contents);
  if (differences.length === 0) return;
  const shown = differences.slice(0, SHOWN_DIFFERENCES).join("; ");
  const more = differences.length > SHOWN_DIFFERENCES ? "; …" : "";
  const text = `the packages differ from those of the lock file in ${differences.length} lines: ${shown}${more}`;
  if (severity === "error") throw new BuildFailure(text, "finalize");
  print(severity, text);
  for (const line of differences) print("debug", line);
}

/** A step may have removed the user whom sandboxes of the template need. */
async function requireUser(sandbox: Sandbox, name: string): Promise<void> {
  try {
    await sandbox.user(name);
  } catch (error) {
    if (!(error instanceof SandboxError) || error.code !== "not_found") throw error;
    const message = `user '${name}' does not exist any more at the end of the build`;
    throw new BuildFailure(message, "finalize", { cause: error });
  }
}

/** The command of the build in its context, or that of its template in its own. An empty one stands for none. */
function startOf({ context, start }: Progress, { options }: BuildTools): StartCommand | undefined {
  const { startCommand: command = "", readyCommand = "" } = options.request;
  if (command === "" && readyCommand === "") return start;
  const ready = readyCommand === "" ? DEFAULT_READY : readyCommand;
  return { ...context, environment: commandEnvironment(context.environment), command, ready, ports: [] };
}

/** Prints a line for each package, `deb bash 5.2.15-2`. Nothing is written, or the image would change. */
const LIST = `
has() { command -v "$1" > /dev/null; }
has dpkg-query && dpkg-query --show --showformat='deb \${Package} \${Version}\n'
has rpm && rpm -qa --queryformat='rpm %{NAME} %{VERSION}-%{RELEASE}\n'
has pacman && pacman -Q | sed 's/^/pacman /'
[ -f /lib/apk/db/installed ] && sed -n 's/^P:/apk /p; s/^V://p' /lib/apk/db/installed | paste -d' ' - -
has pkg && pkg query 'pkg %n %v'
has python3 && python3 -I -B -c '
import importlib.metadata
for one in importlib.metadata.distributions():
    print("pip", one.metadata["Name"], one.version)
'
npm=$(readlink -f "$(command -v npm)") && has node && node -e '
for (const path of process.argv.slice(1)) {
  try {
    const { name, version } = require(path);
    console.log("npm", name, version);
  } catch {}
}
' "\${npm%/*}"/../../*/package.json "\${npm%/*}"/../../@*/*/package.json \\
  /usr/local/lib/node_modules/*/package.json /usr/local/lib/node_modules/@*/*/package.json
exit 0
`;
const LINE = /^(deb|rpm|pacman|apk|pkg|pip|npm) \S+ \S+$/;

/** Lists the packages of an image, sorted, each as `kind name version`. A guest may print anything. */
async function listContents(sandbox: Sandbox, signal: AbortSignal): Promise<readonly string[]> {
  const { stdout } = await runScript(sandbox, LIST, { args: [], shell: "sh", signal });
  return [...new Set(stdout.split("\n").filter((line) => LINE.test(line)))].toSorted();
}
