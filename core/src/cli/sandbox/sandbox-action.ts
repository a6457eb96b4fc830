import type { parseArgs, ParseArgsConfig } from "node:util";
import type { SandboxClient } from "./sandbox-client.js";
import { SandboxError } from "../../kernel/errors.js";

export type Options = NonNullable<ParseArgsConfig["options"]>;
type Parsed<O extends Options> = ReturnType<typeof parseArgs<{ options: O; allowPositionals: true }>>;

/** An action of `coppice sandbox`, in a file of its own. */
export interface SandboxAction<O extends Options = Options> {
  /** The arguments that the usage shows after the action's name. */
  readonly usage: string;
  /** The exit code when the server cannot be reached or refuses. */
  readonly failed: number;
  /** The exit code when there is no such sandbox. */
  readonly notFound: number;
  readonly options: O;
  /** False when it has options alone. */
  readonly takesArguments: boolean;
  /** @returns the exit code. @throws ApiFailure, SandboxError invalid_argument for its arguments. */
  run(client: SandboxClient, given: Parsed<O>): Promise<number>;
}

/** Checks an action by the types of its own options. */
export function sandboxAction<const O extends Options>(action: SandboxAction<O>): SandboxAction {
  return action;
}

/** `name=value` options as an object. @throws SandboxError invalid_argument that names the option. */
export function namedValues(option: string, texts: readonly string[]): Readonly<Record<string, string>> {
  return Object.fromEntries(
    texts.map((text) => {
      const at = text.indexOf("=");
      if (at < 1) throw new SandboxError("usage_invalid", `${option} is name=value`);
      return [text.slice(0, at), text.slice(at + 1)];
    }),
  );
}
