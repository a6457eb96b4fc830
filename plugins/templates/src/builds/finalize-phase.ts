import { SandboxError } from "@coppice/core";
import type { Sandbox } from "@coppice/core/backend";
import { BuildFailure } from "../model/build-failure.js";
import type { Lock } from "../model/build-request.js";
import type { StartCommand } from "../model/layer.js";
import { differencesOf } from "../model/contents-lock.js";
import { makeAccount } from "../guest/accounts.js";
import { trustNewAuthorities } from "./authorities.js";
import { DEFAULT_USER } from "./base-phase.js";
import type { BuildTools, Progress } from "./build-tools.js";
import { commandEnvironment } from "../guest/context-command.js";
import { failureText, runScript } from "../guest/guest-run.js";
import { makeWorkdir } from "../guest/make-directory.js";
import { baseKey } from "./layer-key.js";
import { runStartCommand } from "./start-command-run.js";
import { withRoom } from "./with-room.js";

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
    if (settled.exit.code !== 0) {
      throw new BuildFailure(`configuration script failed: ${failureText(settled)}`, "finalize");
    }
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
import type { StartCommand } from "../model/layer.js";
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
