import { resolve } from "node:path";
import { type BootOptions, type Inspected, inspect } from "./boot.js";
import { type Configuration, configure } from "./configure.js";
import { systemClock } from "../kernel/clock.js";
import { BootError } from "../kernel/errors.js";
import { type Deadline, within } from "../kernel/time.js";
import { createLogger } from "../observe/logger.js";
import { assessBackends } from "../sandbox/backends/choose-backends.js";
import { examineDataDirectory } from "./examine-data-directory.js";
import { examineListeners } from "./examine-listeners.js";
import { failures, type Finding, type NamedFinding } from "../observe/finding.js";

const IN_TIME: Deadline = {
  clock: systemClock,
  timeoutMs: 60_000,
  keepAlive: true,
  overdue: () => new Error("no answer within 60 s"),
};

/**
 * Finds problems that keep this host from serving a configuration. Plugins are set up for it and undone again; nothing
 * is started, and nothing is changed that a start would not change.
 */
export async function examine(options: BootOptions): Promise<readonly NamedFinding[]> {
  const node: NamedFinding = { name: "node", severity: "ok", message: `Node ${process.versions.node}` };
  let configuration: Configuration;
  try {
    configuration = await configure(options.config, options.plugins);
  } catch (error) {
    return [node, ...failures("configuration", error)];
  }
  const { server, plugins } = configuration;
  const findings = [
    node,
    ...(await examineDataDirectory(resolve(server.dataDir))),
    ...(await examineListeners(server.listeners)),
  ];
  try {
    const log = options.log ?? createLogger("silent");
    await inspect({ ...options, log, configuration }, async (inspected) => {
      findings.push(...examineAssembly(inspected, plugins.length));
      findings.push(...(await examineBackends(inspected)));
      findings.push(...(await askPlugins(inspected)));
    });
  } catch (error) {
    findings.push(...failures("configuration", error));
  }
  return findings;
}

function examineAssembly({ problems }: Inspected, count: number): readonly NamedFinding[] {
  const name = "configuration";
  if (problems.length > 0) return failures(name, new BootError(problems));
  return [{ name, severity: "ok", message: `${count} plugins fit together` }];
}

async function examineBackends({
  backends,
  templates,
  configuration,
}: Inspected): Promise<readonly NamedFinding[]> {
  const { problems, verdicts } = await assessBackends(
    { backends, templates },
    configuration.server.sandboxes,
    (backend) => within(() => backend.check(), IN_TIME),
  );
  return [
    ...verdicts.map(({ name, reason, isLeftOut }): NamedFinding => {
      if (reason === undefined)
        return { name: `backend ${name}`, severity: "ok", message: "this host can run it" };
      if (!isLeftOut) return { name: `backend ${name}`, severity: "fail", message: reason };
      const message = `${reason}; the next one of sandboxes.defaultBackend is used`;
      return { name: `backend ${name}`, severity: "warn", message };
    }),
    ...problems.map((message): NamedFinding => ({ name: "sandboxes", severity: "fail", message })),
  ];
}

async function askPlugins({ configuration, diagnoses }: Inspected): Promise<readonly NamedFinding[]> {
  const plugins = new Set(configuration.plugins.map(({ plugin }) => plugin.name));
  const answers: NamedFinding[] = [];
  for (const { name, run } of diagnoses) {
    try {
      const found = await within<readonly Finding[]>((signal) => run({ signal, plugins }), IN_TIME);
      answers.push(...found.map((finding) => ({ ...finding, name })));
    } catch (error) {
      answers.push(...failures(name, error));
    }
  }
  return answers;
}
