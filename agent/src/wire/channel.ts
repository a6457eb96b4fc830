import type { SandboxError } from "@coppice/core/backend";

/** One id of a connection, as its user sees it. */
export interface Link {
  readonly id: number;
  /** The same for all ids of the connection. */
  readonly connection: object;
  /** Does nothing after `release` or the end of the connection. */
  send(type: number, payload?: Uint8Array): void;
  /** Makes the agent forget the id; later frames for it are dropped. Safe to repeat. */
  release(): void;
  /** True when the agent may hand over descriptors. */
  readonly canShare: boolean;
  /** Takes over a descriptor of the agent. Undefined when the system does not allow it. The caller closes it. */
  takeDescriptor(descriptor: number): Promise<number | undefined>;
}

/** Receiver of the frames of one id. */
export interface Channel {
  /**
   * Takes a frame and may keep its payload.
   * @throws ProtocolError for an unexpected frame: the connection is closed.
   */
  receive(type: number, payload: Buffer): void;
  /**
   * The connection has ended. Called once, after all frames.
   * @param gone settles when the processes of the agent have ended, where this is known.
   */
  lost(reason: SandboxError, gone?: Promise<void>): void;
}
