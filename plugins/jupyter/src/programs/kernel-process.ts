import { SandboxError } from "@coppice/core";
import type { Process } from "@coppice/core/backend";
import { z } from "zod";
import { writeKernelLabel } from "./kernel-label.js";
import { killProgram, ProgramOutput, startProgram, type ProgramCommand } from "./start-program.js";
import { REASONS } from "../reasons.js";

export interface KernelCommand extends Omit<ProgramCommand, "label"> {
  /** Id of the kernel. A later server finds the kernel's process by this id. */
  readonly id: string;
}

/** A kernel that listens but has got no request yet. */
export interface KernelProcess {
  readonly process: Process;
  /** Ports on the loopback address inside the sandbox. */
  readonly ports: KernelPorts;
  /** The end of its output outside of executions, which has the reason of a crash. */
  readonly outputTail: () => string;
}

const portNumber = z.int().min(1).max(65535);
export const kernelPorts = z.object({
  shell: portNumber,
  iopub: portNumber,
  stdin: portNumber,
  control: portNumber,
  hb: portNumber,
});
export type KernelPorts = z.infer<typeof kernelPorts>;

/** Starts a kernel and waits until it listens. @throws SandboxError as `startProgram`; no process is left then. */
export async function startKernelProcess({ id, ...command }: KernelCommand): Promise<KernelProcess> {
  const started = await startProgram({ ...command, label: writeKernelLabel({ kernel: id }) });
  const { process, report, outputTail } = started;
  const ports = kernelPorts.safeParse(report);
  if (ports.success) return { process, ports: ports.data, outputTail };
  await killProgram(process);
  throw new SandboxError(REASONS.kernel_start_failed, "the kernel did not report its ports");
}

export function adoptKernelProcess(process: Process, ports: KernelPorts): KernelProcess {
  return { process, ports, outputTail: new ProgramOutput(process, { isStarting: false }).tail };
}
