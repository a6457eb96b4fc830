import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { agentBinary } from "@coppice/agent";
import { SandboxError, type VerbContext } from "@coppice/core";
import { BuiltTemplates } from "./built-templates.js";
import { Host } from "../host/host.js";
import { installationOf } from "../host/installation.js";
import type { JailSettings } from "../jail-freebsd-config.js";

/** Dependencies of the verbs that work on templates. */
export interface TemplateWorkshop {
  readonly host: Host;
  readonly templates: BuiltTemplates;
}

/**
 * Runs a verb on templates, in one process of this installation at a time; a server may run meanwhile.
 * @throws SandboxError failed_precondition while another process works on them.
 */
export async function withTemplateWorkshop<T>(
  { config, dataDir }: VerbContext<JailSettings>,
  work: (workshop: TemplateWorkshop) => Promise<T>,
): Promise<T> {
  const agent = config.agent ?? agentBinary();
  if (agent === undefined) {
    throw new SandboxError(
      "agent_not_built",
      "the agent has not been built: install a C compiler and run set-up",
    );
  }
  // Used only for its lock, which ends with the process, even after a crash.
  const lock = new DatabaseSync(join(dataDir(), "templates.lock"), { timeout: 0 });
  try {
    try {
      lock.exec("BEGIN EXCLUSIVE");
    } catch (error) {
      const text = "another process builds or removes templates";
      throw new SandboxError("templates_busy", text, { cause: error });
    }
    await mkdir(config.directory, { recursive: true, mode: 0o700 });
    const host = new Host({
      programs: config.programs,
      agent,
      // Separate from the server's agent, which outlives this verb.
      socket: join(config.directory, "templates.sock"),
      timeoutMs: config.hostCommandTimeout,
      outputLimitBytes: config.hostOutputLimit,
      log: { debug: () => undefined, warn: () => undefined },
    });
    try {
      // A killed process leaves its program running, which still works on a template.
      for (const left of await host.served()) {
        await left.kill("SIGKILL", "group").catch(() => undefined);
        await left.exit;
      }
      const builder = installationOf(config.directory);
      return await work({ host, templates: new BuiltTemplates(host, { parent: config.dataset, builder }) });
    } finally {
      await host.close({ isEmpty: true });
    }
  } finally {
    lock.close();
  }
}
