import { resolve, dirname, join } from "node:path";
import { type BootOptions, type Inspected, inspect } from "./boot.js";
import { type Configuration, configure } from "./configure.js";
import { systemClock } from "../kernel/clock.js";
import { BootError, messageOf } from "../kernel/errors.js";
import { type Deadline, within } from "../kernel/time.js";
import { createLogger } from "../observe/logger.js";
import { assessBackends } from "../sandbox/backends/choose-backends.js";
import { examineNetwork, examineNames } from "./host-network.js";
import { failures, type Finding, type NamedFinding } from "../observe/finding.js";
import { constants } from "node:fs";
import { access, mkdtemp, rmdir, stat } from "node:fs/promises";
import { reasonLedgerUnusable } from "../sandbox/ledger/sqlite-ledger.js";
import { once } from "node:events";
import { createServer, type Server } from "node:net";
import type { ServerConfig } from "./server-schema.js";

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
    ...(await examineNetwork(server.outgoing)),
    ...(await examineNames(server.domain)),
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

const NAME = "dataDir";
const ELSEWHERE = "make it writable for this user, or set dataDir to another directory";

/** Finds out whether a server can keep its data in a directory. Leaves nothing there. @param dataDir absolute. */
async function examineDataDirectory(dataDir: string): Promise<readonly NamedFinding[]> {
  const existing = await nearestExisting(dataDir);
  try {
    if (!(await stat(existing)).isDirectory()) throw new Error("it is not a directory");
    await access(existing, constants.W_OK | constants.X_OK);
    // root has access everywhere, but no directory can be made in /proc, for example.
    if (existing !== dataDir) await rmdir(await mkdtemp(join(existing, ".coppice-")));
  } catch (error) {
    const message = `${existing} cannot be written: ${messageOf(error)}`;
    return [{ name: NAME, severity: "fail", message, fix: ELSEWHERE }];
  }
  if (existing !== dataDir) return [{ name: NAME, severity: "ok", message: `${dataDir} can be made` }];
  const reason = reasonLedgerUnusable(dataDir);
  if (reason !== undefined) return [{ name: NAME, severity: "fail", message: reason }];
  return [{ name: NAME, severity: "ok", message: `${dataDir} can be written, and no server uses it` }];
}

async function nearestExisting(path: string): Promise<string> {
  for (let nearest = path; ; nearest = dirname(nearest)) {
    const isMissing = await stat(nearest).then(
      () => false,
      (error: NodeJS.ErrnoException) => error.code === "ENOENT",
    );
    if (!isMissing || nearest === dirname(nearest)) return nearest;
  }
}

const FIXES: Readonly<Record<string, (name: string) => string>> = {
  EADDRINUSE: (name) => `stop what listens there, or set listeners.${name}.port to another port`,
  EACCES: (name) => `start as root, give Node cap_net_bind_service, or set listeners.${name}.port above 1023`,
  EADDRNOTAVAIL: (name) => `set listeners.${name}.host to an address of this host`,
};

/** Finds out which listener addresses are free, by listening at each for a moment. */
async function examineListeners(listeners: ServerConfig["listeners"]): Promise<readonly NamedFinding[]> {
  const held: Server[] = [];
  const findings: NamedFinding[] = [];
  try {
    for (const [key, { host, port }] of Object.entries(listeners)) {
      const name = `listener ${key}`;
      const address = `${host.includes(":") ? `[${host}]` : host}:${port}`;
      const server = createServer();
      held.push(server);
      try {
        server.listen({ host, port, exclusive: true });
        await once(server, "listening");
        const message = port === 0 ? `any port of ${host}` : `${address} is free`;
        findings.push({ name, severity: "ok", message });
      } catch (error) {
        const { code = "" } = error as NodeJS.ErrnoException;
        const message = `${address} cannot be had: ${messageOf(error)}`;
        findings.push({ name, severity: "fail", message, fix: FIXES[code]?.(key) });
      }
    }
  } finally {
    for (const server of held) server.close();
  }
  return findings;
}
