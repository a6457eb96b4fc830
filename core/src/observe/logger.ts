import { pino, type Logger as PinoLogger } from "pino";

/** Structured log: `log.info({ fields }, "constant message")`. Never payloads, never secrets. */
export type Logger = PinoLogger;

/** Where secrets travel: headers, and the fields that services log under these names. */
const SECRETS = [
  "accessToken",
  "apiKey",
  "token",
  "*.accessToken",
  "*.apiKey",
  "*.token",
  "headers.authorization",
  'headers["x-api-key"]',
  'headers["x-access-token"]',
];

/** A logger that writes JSON lines to stdout. */
export function createLogger(level: string): Logger {
  return pino({ level, base: null, timestamp: pino.stdTimeFunctions.isoTime, redact: SECRETS });
}
