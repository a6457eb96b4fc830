import type { Guard } from "@coppice/core";
import { presentedToken, requireToken } from "./access-token.js";

// The SDKs present the token to /execute only, not to these.
const WITHOUT_TOKEN = /^\/(health|contexts(\/[^/]+(\/restart)?)?)$/;

/** Requires the token of a sandbox wherever the SDKs present it; elsewhere it may be absent, but not wrong. */
export const codeGuard: Guard = (request) => {
  const token = request.target?.sandbox.record.accessToken;
  if (token === undefined) return;
  if (WITHOUT_TOKEN.test(request.url.pathname) && presentedToken(request) === undefined) return;
  requireToken(request, token);
};
