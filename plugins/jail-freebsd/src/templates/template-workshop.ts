import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { agentBinary } from "@coppice/agent";
import { messageOf, SandboxError, type VerbContext } from "@coppice/core";
import { BuiltTemplates } from "./built-templates.js";
import { Host, HostCommandError } from "../host/host.js";
import { installationOf } from "../host/installation.js";
import { takeLock } from "../host/lock.js";
import type { JailSettings } from "../jail-freebsd-config.js";

/** Dependencies of the verbs that work on templates. */
export interface TemplateWorkshop {
  readonly host: Host;
  readonly templates: BuiltTemplates;
}

/**
 * Runs a verb on templates, in one process of this installation at a time; a server may run meanwhile.
 * @throws SandboxError failed_precondition while another process works on them, and for a command of the host that fails.
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
  const lock = takeLock(join(dataDir(), "templates.lock"));
  if (lock === undefined) {
    throw new SandboxError("templates_busy", "another process builds or removes templates");
  }
  try {
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
      const builder = installationOf(config.directory);
      return await work({ host, templates: new BuiltTemplates(host, { parent: config.dataset, builder }) });
    } catch (error) {
      if (!(error instanceof HostCommandError)) throw error;
      throw new SandboxError("template_unusable", messageOf(error), { cause: error });
    } finally {
      await host.close({ isEmpty: true });
    }
  } finally {
    lock.close();
  }
}
