import { createToken, type LiveSandbox } from "@coppice/core";
import type { ExecutionEvent } from "../kernel/execution-event.js";
import type { KernelExecution } from "../kernel/kernel.js";

/** An execution environment whose state survives between executions. */
export interface InterpreterContext {
  readonly id: string;
  readonly language: string;
  readonly cwd: string;
  /** Waits until a kernel is ready. @throws SandboxError when none starts. */
  ready(): Promise<void>;
  /** Reserves a place in the queue, before waiting for anything. @throws SandboxError resource_exhausted */
  reserveSlot(): Disposable;
  /** Runs code after all earlier requests, until the signal aborts, which interrupts it. */
  execute(execution: KernelExecution, signal: AbortSignal): AsyncIterable<ExecutionEvent>;
}

/** The contexts of one sandbox. */
export interface SandboxInterpreter {
  /** @throws SandboxError unimplemented for an unknown language, resource_exhausted. */
  create(options: { readonly language: string; readonly cwd: string }): Promise<InterpreterContext>;
  /** The one of a language where a client names none. @throws SandboxError unimplemented for an unknown language. */
  defaultFor(language: string | undefined): Promise<InterpreterContext>;
  list(): Promise<readonly InterpreterContext[]>;
  /** @throws SandboxError not_found */
  get(id: string): InterpreterContext;
  /** @throws SandboxError not_found */
  remove(id: string): Promise<void>;
}

/** Runs code in the contexts of sandboxes, which all surfaces share. */
export interface CodeInterpreter {
  of(sandbox: LiveSandbox): Promise<SandboxInterpreter>;
}

export const CodeInterpreter = createToken<CodeInterpreter>("code-interpreter");
