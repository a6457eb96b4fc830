import type { Logger, MemoryRoom } from "@coppice/core";
import type { Process, Sandbox, User } from "@coppice/core/backend";
import type { KernelConnection } from "./kernel-notes.js";
import type { InstalledKernel, KernelProgram } from "../programs/kernel-program.js";
import type { PortLeases } from "../programs/port-leases.js";
import type { HeartbeatSettings } from "../transport/heartbeat.js";
import type { ChannelName, OpenKernelChannels } from "../transport/kernel-channels.js";
import type { KernelMessage } from "../transport/wire.js";

/** Receives a kernel's messages, except for answers to the server's internal requests. */
export interface KernelObserver {
  /** A promise while it cannot take more: the kernel's channel waits for it. */
  received(channel: ChannelName, message: KernelMessage): Promise<void> | undefined;
}

export interface KernelSettings {
  readonly startTimeoutMs: number;
  /** Time for an interrupted cell to end, and for an idle kernel to begin another, before the kernel is killed. */
  readonly interruptGraceMs: number;
  /** A larger message breaks the connection to the kernel. */
  readonly maxMessageBytes: number;
  /** Value and traceback of a larger error are cut. */
  readonly maxErrorBytes: number;
  readonly openChannels: OpenKernelChannels;
  readonly heartbeat: HeartbeatSettings;
  readonly portLeases: PortLeases;
  readonly room: MemoryRoom;
}

/** Dependencies of a kernel, started or adopted. */
export interface KernelSurroundings {
  readonly sandbox: Sandbox;
  /** Owner of the sandbox. */
  readonly tenant: string;
  readonly program: KernelProgram | InstalledKernel;
  readonly settings: KernelSettings;
  readonly log: Logger;
  /** Returns the observer of now; undefined while no client could keep a message. */
  readonly observer?: () => KernelObserver | undefined;
  /** True while the sandbox is frozen: kernels cannot answer then. */
  readonly isFrozen: () => boolean;
  /** Called when a kernel is ended because its heartbeat stopped. */
  readonly onSilent: () => void;
  /** Aborts the start. */
  readonly signal: AbortSignal;
}

export interface KernelStart extends KernelSurroundings {
  readonly user: User;
  readonly env: Readonly<Record<string, string>>;
  /** Absolute path inside the sandbox. */
  readonly cwd: string;
}

export interface KernelAdoption extends KernelSurroundings {
  readonly process: Process;
  /** From the earlier server. */
  readonly connection: KernelConnection;
}
