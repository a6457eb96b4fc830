import { posix } from "node:path";
import type { AgentFiles } from "@coppice/agent";
import type { FileInfo, OpenFile } from "@coppice/core/backend";
import { accountName } from "./accounts.js";
import { asAsked } from "./file-error.js";
import type { AgentUse, TreeAgent } from "./tree-agent.js";

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

  /** Describes an entry; does not follow it. */
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
