import { z } from "zod";
import { sessionIdField } from "./session-id.js";

const MAX_TIMEOUT_MS = 2 ** 31 - 1;

/** Variables; those that are null are skipped. */
export const variables = z
  .record(z.string(), z.string().nullish())
  .transform((all) =>
    Object.fromEntries(
      Object.entries(all).filter((entry): entry is [string, string] => typeof entry[1] === "string"),
    ),
  );

export const timeout = z.int().positive().max(MAX_TIMEOUT_MS);

/** Fields of a request that runs a command. Clients send more, which mean nothing here. */
export const commandBody = z.object({
  command: z.string(),
  sessionId: sessionIdField.nullish(),
  timeoutMs: timeout.nullish(),
  env: variables.nullish(),
  cwd: z.string().nullish(),
  background: z.boolean().nullish(),
  /** Of the output; bytes that are no UTF-8 survive in base64 alone. */
  encoding: z.string().nullish(),
});

/** Fields of a request that starts a process. */
export const processBody = commandBody.extend({ processId: z.string().nullish() });

export type CommandBody = z.infer<typeof commandBody>;
