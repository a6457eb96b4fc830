import { SandboxError } from "@coppice/core";
import type { AgentConnection } from "./agent-connection.js";

/** The connection to an agent of this host: it is opened with the first use, and again with the next after it ended. */
export class HostConnection {
  readonly #open: () => Promise<AgentConnection>;
  #opening: Promise<AgentConnection> | undefined;
  #isClosed = false;

  constructor(open: () => Promise<AgentConnection>) {
    this.#open = open;
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** @throws SandboxError server_stopping after `close`, or what opening throws. */
  async get(): Promise<AgentConnection> {
    for (;;) {
      if (this.#isClosed) throw new SandboxError("server_stopping", "the server is stopping");
      const opening = (this.#opening ??= this.#open());
      const connection = await opening.catch(() => undefined);
      if (connection?.isOver === false) return connection;
      await connection?.closed;
      if (this.#opening === opening) this.#opening = undefined;
      if (connection === undefined) return opening;
    }
  }

  /** Disconnects. @param first runs before, unless there is no connection. */
  async close(first?: (connection: AgentConnection) => Promise<void>): Promise<void> {
    this.#isClosed = true;
    const connection = await this.#opening?.catch(() => undefined);
    if (connection === undefined) return;
    await first?.(connection);
    await connection.close();
  }
}
