/** Codes of Node.js for a certificate that is not accepted. Whoever has one is a server for everybody. */
const OF_CERTIFICATES = /^(CERT_|UNABLE_TO_|SELF_SIGNED|DEPTH_ZERO|ERR_TLS_CERT)/;

/**
 * Reason of a failed connection to a target that a client chose, for that client. A port that refuses, drops or speaks
 * something else gets one text, so that a client cannot scan ports by this server; a certificate's fault is told.
 */
export function failedConnection(error: unknown): string {
  const { code, message } = error as { readonly code?: unknown; readonly message?: string };
  if (typeof code !== "string") return message ?? "the connection failed";
  return OF_CERTIFICATES.test(code) ? `the connection failed (${code})` : "the connection failed";
}
