import type { Duplex } from "node:stream";

/** The sockets of a kernel that the server uses. */
export type ChannelName = "shell" | "control" | "stdin" | "iopub";

/** A connection to each of the sockets of one kernel, made anew when it is lost. */
export interface KernelChannels {
  /** Hands a message over, in order. Rejects when the channels were closed before it was taken. */
  send(channel: Exclude<ChannelName, "iopub">, frames: readonly Buffer[]): Promise<void>;
  /** Messages as they are pulled; ends when the channels are closed. One reader per channel. */
  receive(channel: ChannelName): AsyncIterable<readonly Buffer[]>;
  /** Safe to repeat. */
  close(): Promise<void>;
}

export interface KernelChannelsOptions {
  /** On the loopback address inside the sandbox. */
  readonly ports: Readonly<Record<ChannelName, number>>;
  /** Where they can be connected to from the host; absent = by `dial` only. */
  readonly address?: string | undefined;
  /** Opens a stream to a port inside the sandbox. */
  readonly dial: (port: number, signal: AbortSignal) => Promise<Duplex>;
  /** How the kernel addresses its answers: the id of the session. */
  readonly identity: string;
  /** A larger message breaks the connection. */
  readonly maxMessageBytes: number;
  /** Told when a connection has ended before the channels were closed. */
  readonly onLost: (channel: ChannelName) => void;
}

/** Connects to a kernel, which need not listen yet. */
export type OpenKernelChannels = (options: KernelChannelsOptions) => KernelChannels;
