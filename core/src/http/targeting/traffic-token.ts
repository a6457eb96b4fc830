import { secretEqual } from "../../kernel/secret-equal.js";
import type { IncomingHttpHeaders } from "node:http";
import { EdgeRefusal } from "../messages/edge-refusal.js";
import type { Target } from "../surfaces/surface-request.js";
import { ENVD_PORT } from "../surfaces/targets.js";

/** Header with the secret of a sandbox without public traffic. */
export const TRAFFIC_TOKEN_HEADER = "e2b-traffic-access-token";

/**
 * Requires the secret for the ports of a sandbox without public traffic; envd's port has its own token.
 * @throws HttpError 403 with the texts of the E2B edge.
 */
export function requireTrafficToken({ sandbox, port }: Target, headers: IncomingHttpHeaders): void {
  const { id, trafficAccessToken } = sandbox.record;
  if (trafficAccessToken === undefined || port === ENVD_PORT) return;
  const given = headers[TRAFFIC_TOKEN_HEADER];
  if (typeof given === "string" && secretEqual(trafficAccessToken, given)) return;
  const [which, what] =
    typeof given !== "string" || given === ""
      ? ["Missing", `Token header '${TRAFFIC_TOKEN_HEADER}' is missing`]
      : ["Invalid", `Provided token in header '${TRAFFIC_TOKEN_HEADER}' is invalid`];
  throw new EdgeRefusal(403, {
    reason: "traffic_token_invalid",
    sandboxId: id,
    message: `Sandbox is secured with traffic access token. ${what}`,
    title: `${which} Traffic Access Token`,
  });
}
