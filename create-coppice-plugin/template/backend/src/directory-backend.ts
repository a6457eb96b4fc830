import { mkdir, readdir, realpath, rm, symlink, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { agentBinary, startHostAgent } from "@coppice/agent";
import { messageOf } from "@coppice/core";
import { type Sandbox, type SandboxBackend, SandboxError, type SandboxSpec } from "@coppice/core/backend";
import { DirectorySandbox, removeTree } from "./directory-sandbox.js";

/** Begins the names of its directories: a server removes nothing else. */
const PREFIX = "{{plugin}}-";

/**
 * Sandboxes as directories of this host, each with an agent that starts its processes and works on its files. Nothing is
 * isolated: a real backend starts the agent inside of a container or a virtual machine.
 */
export class DirectoryBackend implements SandboxBackend {
  readonly name = "{{plugin}}";
  readonly isolated = false;
  readonly #parent: string;

  /** @param parent absolute; made when missing, and used by one server at a time. */
  constructor(parent: string) {
    this.#parent = parent;
  }

  async check(): Promise<void> {
    try {
      if (agentBinary() === undefined)
        throw new Error("@coppice/agent has no program for this platform: set COPPICE_AGENT to one");
      await mkdir(this.#parent, { recursive: true, mode: 0o700 });
    } catch (error) {
      const message = `{{plugin}} cannot use this host: ${messageOf(error)}`;
      throw new SandboxError("host_unusable", message, { cause: error });
    }
  }

  async provision({ id, allowInternetAccess }: SandboxSpec, signal: AbortSignal): Promise<Sandbox> {
    if (!allowInternetAccess)
      throw new SandboxError(
        "network_rules_unsupported",
        "sandboxes of {{plugin}} use the host's network: they cannot be kept from the internet",
      );
    signal.throwIfAborted();
    // The path that processes print, too.
    const root = join(await realpath(this.#parent), PREFIX + id);
    await mkdir(root, { mode: 0o700 });
    try {
      await furnish(root);
      const agent = await startHostAgent({ root, defaultUser: "user" });
      if (!signal.aborted) return new DirectorySandbox(id, root, agent);
      await agent.close();
      throw signal.reason;
    } catch (error) {
      await rm(root, { recursive: true, force: true });
      throw error;
    }
  }

  /** An agent ends with its server, and with it all that it started: only files can be left. */
  async recover(): Promise<readonly Sandbox[]> {
    const names = await readdir(this.#parent);
    for (const name of names.filter((each) => each.startsWith(PREFIX)))
      await removeTree(join(this.#parent, name));
    return [];
  }
}

/** Makes what clients expect in every sandbox. Its two users are both the account of the server. */
async function furnish(root: string): Promise<void> {
  for (const path of ["home/user", "root", "tmp", "etc"]) await mkdir(join(root, path), { recursive: true });
  const [uid, gid] = [process.getuid?.() ?? 0, process.getgid?.() ?? 0];
  const accounts = `user:x:${uid}:${gid}::/home/user:/bin/bash\nroot:x:${uid}:${gid}::/root:/bin/bash\n`;
  await writeFile(join(root, "etc/passwd"), accounts);
  // Processes see the host's paths, and operations on files those below the root: so both mean the same to both.
  await mkdir(join(root, dirname(root)), { recursive: true });
  await symlink("/", join(root, root));
}
