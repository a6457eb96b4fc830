import { createToken } from "../../kernel/token.js";
import type { Limits } from "../contract/backend.js";

export interface TemplateFacts {
  readonly name: string;
  readonly aliases: readonly string[];
  /** Default limits of its sandboxes; absent where its backend cannot tell. */
  readonly limits: Limits;
}

/** Templates of sandboxes, the same for every tenant. */
export interface Templates {
  /** In the order of the configuration. */
  all(): readonly TemplateFacts[];
  /** The template of a reference. @throws SandboxError invalid_argument, not_found, with E2B's texts. */
  find(reference: string): TemplateFacts;
}

export const Templates = createToken<Templates>("templates");
