import type { SandboxError } from "@coppice/core/backend";

/** One id of a connection, as those see it who use it. */
export interface Link {
  readonly id: number;
  send(type: number, payload?: Uint8Array): void;
  /** Tells the agent to forget the id; whatever it still says about it is dropped. */
  release(): void;
}

/** What lives under one id of a connection. */
export interface Channel {
  /**
   * Takes a frame, whose payload it may keep.
   * @throws ProtocolError for a frame that has no place here: the connection is closed.
   */
  receive(type: number, payload: Buffer): void;
  /** The connection has ended. Called once, and nothing comes after it. */
  lost(reason: SandboxError): void;
}
