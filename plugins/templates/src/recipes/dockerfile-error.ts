import type { Instruction } from "dockerfile-ast";

/** A Dockerfile, or a line of it, cannot be built here. The message names the line. */
export class DockerfileError extends Error {
  override readonly name = "DockerfileError";
}

export function errorAt(instruction: Instruction, reason: string): DockerfileError {
  const line = instruction.getInstructionRange().start.line + 1;
  return new DockerfileError(`line ${line}: ${instruction.getInstruction()}: ${reason}`);
}
