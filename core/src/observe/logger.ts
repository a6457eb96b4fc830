import { type DestinationStream, type Logger as PinoLogger, pino, stdSerializers } from "pino";
import { SandboxError } from "../kernel/errors.js";
import { LogOutput, ownDescriptor } from "./log-output.js";

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

/** Of all loggers of this process without a destination of their own. */
let standardOutput: LogOutput | undefined;

const STDOUT = 1;

function openStandardOutput(): LogOutput {
  const output = new LogOutput(ownDescriptor(STDOUT));
  process.on("exit", () => output.flushSync());
  return output;
}

/** A logger that writes JSON lines. @param destination stdout when absent. */
export function createLogger(
  level: string,
  destination: DestinationStream = (standardOutput ??= openStandardOutput()),
): Logger {
  const options = {
    level,
    base: null,
    timestamp: pino.stdTimeFunctions.isoTime,
    redact: SECRETS,
    serializers: { err: describeError },
  };
  return pino(options, destination);
}

/** Leaves out the stack of a foreseen failure without a cause: its message suffices. */
function describeError(error: Error): object {
  if (!(error instanceof SandboxError) || error.code === "internal" || error.cause !== undefined)
    return stdSerializers.err(error);
  return { type: error.name, code: error.code, reason: error.reason, message: error.message };
}
