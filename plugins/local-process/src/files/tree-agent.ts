import { posix } from "node:path";
import { type AgentConnection, type AgentFiles, startHostAgent } from "@coppice/agent";
import { SandboxError } from "@coppice/core";
import type { FileInfo, OpenFile } from "@coppice/core/backend";
import { findAccount, accountName } from "./describe-entry.js";
import { asAsked } from "./walk.js";

interface TreeAgentOptions {
  readonly binary: string;
  /** Directory of this host that the agent sees as `/`; no path leads out of it. */
  readonly root: string;
  readonly writeInPlaceLimit: number;
}

interface AgentUse extends AsyncDisposable {
  readonly files: AgentFiles;
}

/** Agent for the files of one tree. It runs while it has uses. */
export class TreeAgent {
  readonly #options: TreeAgentOptions;
  #running: Promise<AgentConnection> | undefined;
  #closing: Promise<void> | undefined;
  #isClosed = false;
  #uses = 0;

  constructor(options: TreeAgentOptions) {
    this.#options = options;
  }

  /** Starts the agent if needed. @throws SandboxError unavailable, and not_found after `close` */
  async use(): Promise<AgentUse> {
    if (this.#isClosed) throw new SandboxError("sandbox_ended", "the sandbox has ended");
    this.#uses++;
    let isOver = false;
    const end = async (): Promise<void> => {
      if (!isOver) this.#end();
      isOver = true;
      await this.#closing;
    };
    try {
      this.#running ??= this.#start();
      const { files } = await this.#running;
      return { files, [Symbol.asyncDispose]: end };
    } catch (error) {
      await end();
      throw error;
    }
  }

  /** Adds a use, if there are others; undefined otherwise. */
  async join(): Promise<AgentUse | undefined> {
    return this.#uses === 0 ? undefined : this.use();
  }

  /** Ends the agent under all of its uses. An operation that has begun before must not start another one after. */
  async close(): Promise<void> {
    this.#isClosed = true;
    const running = this.#running;
    this.#running = undefined;
    await running?.then((agent) => agent.close()).catch(() => undefined);
    await this.#closing;
  }

  #end(): void {
    if (--this.#uses > 0) return;
    this.#closing = this.#running?.then((agent) => agent.close()).catch(() => undefined);
    this.#running = undefined;
  }

  #start(): Promise<AgentConnection> {
    const started = startHostAgent({ ...this.#options, defaultUser: findAccount() });
    const forget = (): void => {
      // After a crash the next use starts another agent.
      if (this.#running === started) this.#running = undefined;
    };
    void started.then(({ closed }) => closed.then(forget), forget);
    return started;
  }
}

interface Following {
  /** Follow a link in the last component, too. */
  readonly follow: boolean;
  /** Message for a path that leads nowhere. */
  readonly missing?: string;
}

/** Path inside to which another leads, without links. @throws SandboxError not_found */
export type Lead = (path: string, options: Following) => string;

/**
 * What a tree has, as its agent sees it: for systems where this process cannot hold an entry, so that a link could take
 * its place. The agent runs from the first read to its `close`.
 */
export class AgentReads {
  readonly #agent: TreeAgent;
  readonly #lead: Lead;
  #kept: Promise<AgentUse> | undefined;

  /** @param lead knows links to paths of the host, which the agent does not. A race there leads to another path inside. */
  constructor(agent: TreeAgent, lead: Lead) {
    this.#agent = agent;
    this.#lead = lead;
  }

  async stat(path: string): Promise<FileInfo> {
    await using use = await this.#use();
    return await this.#named(path, { follow: false }, async (inside) =>
      this.#describe(use.files, await use.files.stat(inside), path),
    );
  }

  async *list(path: string, depth: number): AsyncIterable<FileInfo> {
    await using use = await this.#use();
    const inside = this.#lead(path, { follow: true });
    const prefix = path === "/" ? "" : path.replace(/\/+$/, "");
    try {
      for await (const entry of use.files.list(inside, depth)) {
        const name = entry.path.slice(inside === "/" ? 1 : inside.length + 1);
        yield await this.#describe(use.files, entry, `${prefix}/${name}`);
      }
    } catch (error) {
      throw asAsked(error, inside, path);
    }
  }

  async read(path: string): Promise<OpenFile> {
    const options = { follow: true, missing: `path '${path}' does not exist` };
    const use = await this.#use();
    try {
      return await this.#named(path, options, async (inside) => {
        const file = await use.files.read(inside);
        return {
          info: await this.#describe(use.files, file.info, path),
          content: (options) => file.content(options),
          async [Symbol.asyncDispose]() {
            await file[Symbol.asyncDispose]();
            await use[Symbol.asyncDispose]();
          },
        };
      });
    } catch (error) {
      await use[Symbol.asyncDispose]();
      throw error;
    }
  }

  async #use(): Promise<AgentUse> {
    this.#kept ??= this.#agent.use();
    await this.#kept.catch((error: unknown) => {
      this.#kept = undefined;
      throw error;
    });
    return this.#agent.use();
  }

  async #named<T>(path: string, options: Following, act: (inside: string) => Promise<T>): Promise<T> {
    const inside = this.#lead(path, options);
    try {
      return await act(inside);
    } catch (error) {
      throw asAsked(error, inside, path);
    }
  }

  async #describe(files: AgentFiles, info: FileInfo, path: string): Promise<FileInfo> {
    const described = {
      ...info,
      path,
      name: posix.basename(path) || "/",
      owner: accountName(info.uid),
      group: accountName(info.gid),
    };
    return info.symlinkTarget === undefined
      ? described
      : { ...described, ...(await this.#target(files, path)) };
  }

  async #target(
    files: AgentFiles,
    path: string,
  ): Promise<Pick<FileInfo, "kind" | "mode"> & { readonly symlinkTarget: string }> {
    try {
      const end = this.#lead(path, { follow: true });
      const { kind, mode, symlinkTarget } = await files.stat(end);
      if (symlinkTarget === undefined) return { kind, mode, symlinkTarget: end };
    } catch {
      // Nothing is there, or a loop of links.
    }
    return { kind: "unknown", mode: 0, symlinkTarget: path };
  }
}
