import type { IncomingHttpHeaders } from "node:http";
import type { Reason } from "../../kernel/reasons.js";
import { HttpError } from "./http-error.js";

export interface EdgeRefusalFacts {
  readonly reason: Reason;
  readonly sandboxId: string;
  readonly message: string;
  /** The port inside the sandbox, when the answer is about a port. */
  readonly port?: number | undefined;
}

/** An answer of the E2B edge in place of a sandbox: JSON for programs, a page for browsers. */
export class EdgeRefusal extends HttpError {
  constructor(status: number, { reason, sandboxId, message, port }: EdgeRefusalFacts) {
    const body = { sandboxId, message, ...(port !== undefined && { port }), code: status };
    super(status, message, { reason, body });
  }

  get page(): string {
    const text = escape(this.message);
    return (
      `<!doctype html><html lang="en"><head><meta charset="utf-8"><title>${this.status}</title></head>` +
      `<body><h1>${this.status}</h1><p>${text}</p></body></html>\n`
    );
  }
}

/**
 * The answer for a sandbox that does not serve: the same for unknown, ended and foreign ones. @param why shown to its
 * owner alone.
 */
export function sandboxNotFound(sandboxId: string, why?: string): HttpError {
  const text = "The sandbox was not found";
  const message = why === undefined ? text : `${text}: ${why}`;
  return new EdgeRefusal(502, { reason: "sandbox_not_found", sandboxId, message });
}

/** True for browsers, and for programs that imitate one. */
export function isBrowser({ "user-agent": agent = "" }: IncomingHttpHeaders): boolean {
  return agent.startsWith("Mozilla/");
}

function escape(text: string): string {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}
