import type { IncomingHttpHeaders } from "node:http";
import type { Reason } from "../../kernel/reasons.js";
import { HttpError } from "../messages/http-error.js";

/** A sandbox and a port as a request names them, not yet checked to exist. */
export interface Address {
  readonly sandboxId: string;
  readonly port: number;
}

const SANDBOX_ID = /^[a-z0-9]+$/;
/** Name of the one shared sandbox in debug mode of the SDKs. The listener's port names the surface. */
const DEBUG_SANDBOX_ID = "debug_sandbox_id";

/**
 * The sandbox that a request is addressed to: by the headers `E2b-Sandbox-Id` and `E2b-Sandbox-Port`, else by `Host:
 * <port>-<id>.<domain>`. Undefined when it names none.
 * @throws HttpError 400 with the text of the E2B edge.
 */
export function addressOf(headers: IncomingHttpHeaders, domain: string): Address | undefined {
  const id = headers["e2b-sandbox-id"];
  const port = headers["e2b-sandbox-port"];
  if (namesDebugSandbox(headers)) return undefined;
  if (id !== undefined || port !== undefined) {
    if (typeof id !== "string" || typeof port !== "string")
      throw invalidAddress("host_invalid", "missing header");
    return parse(port, id);
  }
  const host = (headers.host ?? "").replace(/:\d*$/, "").toLowerCase();
  const suffix = `.${domain}`;
  if (!host.endsWith(suffix)) return undefined;
  const label = host.slice(0, -suffix.length);
  if (label === "api" || label === "sandbox") return undefined;
  const [portLabel, idLabel] = label.split("-");
  if (portLabel === undefined || idLabel === undefined || label.includes(".")) {
    throw invalidAddress("host_invalid", "Invalid host");
  }
  return parse(portLabel, idLabel);
}

/** The refusal of a wrong address, as the text of the E2B edge. */
export function invalidAddress(reason: Reason, text: string): HttpError {
  return new HttpError(400, text, { reason, body: text });
}

/** True for requests of the SDKs in debug mode. */
export function namesDebugSandbox(headers: IncomingHttpHeaders): boolean {
  return headers["e2b-sandbox-id"] === DEBUG_SANDBOX_ID;
}

function parse(port: string, sandboxId: string): Address {
  // Some clients still send the long form `<id>-<client id>`.
  const [id = ""] = sandboxId.split("-");
  if (!SANDBOX_ID.test(id)) throw invalidAddress("sandbox_id_invalid", "Invalid sandbox ID");
  const number = /^\d{1,5}$/.test(port) ? Number(port) : 0;
  if (number < 1 || number > 65535) throw invalidAddress("port_invalid", "Invalid sandbox port");
  return { sandboxId: id, port: number };
}
