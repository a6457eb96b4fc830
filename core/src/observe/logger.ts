import { type DestinationStream, type Logger as PinoLogger, pino, stdSerializers } from "pino";
import { SandboxError } from "../kernel/errors.js";

/** Structured log: `log.info({ fields }, "constant message")`. Never payloads, never secrets. */
export type Logger = PinoLogger;

/** Fields and headers that carry secrets. */
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

/** A logger that writes JSON lines. @param destination stdout when absent. */
export function createLogger(level: string, destination?: DestinationStream): Logger {
  const options = {
    level,
    base: null,
    timestamp: pino.stdTimeFunctions.isoTime,
    redact: SECRETS,
    serializers: { err: describeError },
  };
  return destination === undefined ? pino(options) : pino(options, destination);
}

/** Leaves out the stack of a foreseen failure without a cause: its message suffices. */
function describeError(error: Error): object {
  if (!(error instanceof SandboxError) || error.code === "internal" || error.cause !== undefined)
    return stdSerializers.err(error);
  return { type: error.name, code: error.code, reason: error.reason, message: error.message };
}
