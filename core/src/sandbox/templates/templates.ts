import { createToken } from "../../kernel/token.js";
import type { Limits } from "../contract/backend.js";

/** A template that the configuration lists. */
export interface TemplateFacts {
  readonly name: string;
  /** Its further names. */
  readonly aliases: readonly string[];
  /** Limits of a sandbox of it whose creator asks for none; absent where its backend cannot tell. */
  readonly limits: Limits;
}

/** Templates of sandboxes, the same for every tenant. */
export interface Templates {
  /** In the order of the configuration. */
  all(): readonly TemplateFacts[];
  /** The template that a reference means. @throws SandboxError invalid_argument, not_found, with E2B's texts. */
  find(reference: string): TemplateFacts;
}

export const Templates = createToken<Templates>("templates");
