import type { Duplex } from "node:stream";
import type { HeldMemory } from "@coppice/core";

/** The sockets of a kernel that the server uses. */
export type ChannelName = "shell" | "control" | "stdin" | "iopub";

/** Connections to the sockets of one kernel, restored when they are lost. */
export interface KernelChannels {
  /** Sends a message, in order. Rejects when the channels were closed before it was taken. */
  send(channel: Exclude<ChannelName, "iopub">, frames: readonly Buffer[]): Promise<void>;
  /** Messages of a channel; ends when the channels are closed. One reader per channel. */
  receive(channel: ChannelName): AsyncIterable<readonly Buffer[]>;
  close(): Promise<void>;
}

export interface KernelChannelsOptions {
  /** On the loopback address inside the sandbox. */
  readonly ports: Readonly<Record<ChannelName, number>>;
  /** Address of the ports on the host; absent = `dial` only. */
  readonly address?: string | undefined;
  readonly dial: (port: number, signal: AbortSignal) => Promise<Duplex>;
  /** Address for the kernel's answers: the id of the session. */
  readonly identity: string;
  /** A larger message breaks the connection. */
  readonly maxMessageBytes: number;
  /** Counts what is in memory. */
  readonly held: HeldMemory;
  /** Called when a connection has ended before the channels were closed. */
  readonly onLost: (channel: ChannelName) => void;
}

/** Connects to a kernel, which need not listen yet. */
export type OpenKernelChannels = (options: KernelChannelsOptions) => KernelChannels;
