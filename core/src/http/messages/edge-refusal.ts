import type { IncomingHttpHeaders } from "node:http";
import type { Reason } from "../../kernel/reasons.js";
import { HttpError } from "./http-error.js";

export interface EdgeRefusalFacts {
  readonly reason: Reason;
  readonly sandboxId: string;
  readonly message: string;
  /** The port inside the sandbox, when the answer is about a port. */
  readonly port?: number | undefined;
  /** Heading of the page. */
  readonly title: string;
  /** Text of the page; the message when absent. */
  readonly text?: string;
}

/** An answer of the E2B edge in place of a sandbox: JSON for programs, a page for browsers. */
export class EdgeRefusal extends HttpError {
  readonly #facts: EdgeRefusalFacts;

  constructor(status: number, facts: EdgeRefusalFacts) {
    const { reason, sandboxId, message, port } = facts;
    const body = { sandboxId, message, ...(port !== undefined && { port }), code: status };
    super(status, message, { reason, body });
    this.#facts = facts;
  }

  /** Begins and ends as E2B's pages do, which its own tests look for. */
  get page(): string {
    const { title, sandboxId, port, text = this.message } = this.#facts;
    const where = port === undefined ? sandboxId : `${sandboxId}, port ${port}`;
    return (
      `<html lang="en"><head><meta charset="utf-8"><title>${escape(title)}</title></head>` +
      `<body><h1>${escape(title)}</h1><p>${escape(text)}</p><p>Sandbox ${escape(where)}</p></body></html>`
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
  return new EdgeRefusal(502, {
    reason: "sandbox_not_found",
    sandboxId,
    message,
    title: "Sandbox Not Found",
  });
}

/** True for a page that a browser shows; false for what scripts of pages ask for, and for other programs. */
export function wantsPage(headers: IncomingHttpHeaders): boolean {
  if (headers["user-agent"]?.startsWith("Mozilla/") !== true) return false;
  const mode = headers["sec-fetch-mode"];
  if (mode !== undefined) return mode === "navigate";
  if (headers["x-requested-with"] === "XMLHttpRequest") return false;
  const { accept = "" } = headers;
  return accept.includes("text/html") || !accept.includes("application/json");
}

function escape(text: string): string {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}
