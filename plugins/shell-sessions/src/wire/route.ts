import type { Clock, LiveSandbox, Logger, Spool } from "@coppice/core";
import type { BytesInPieces, Commands } from "@coppice/plugin-commands";
import { z } from "zod";
import { SandboxProcesses } from "../processes/sandbox-processes.js";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import type { SandboxSessions } from "../shell/session.js";
import { ShellError } from "../shell/shell-error.js";
import type { ShellSessions } from "../shell/shell-sessions.js";

/** A request to a sandbox, by whatever transport it came. */
export interface ShellRequest {
  readonly sandbox: LiveSandbox;
  readonly sessions: SandboxSessions;
  readonly processes: SandboxProcesses;
  /** Decoded segments of the path, by the names of its pattern. */
  readonly params: Readonly<Record<string, string>>;
  readonly query: URLSearchParams;
  /** A JSON value. Undefined without a body, and for one that is no JSON: `inputOf` refuses it. */
  readonly body: unknown;
  /** Session that the headers or the query name, for the routes that look there when the body names none. */
  readonly headerSession: string | undefined;
  readonly log: Logger;
  /** Aborts when the client leaves. */
  readonly signal: AbortSignal;
}

export type ShellAnswer =
  | {
      /** Fields of the answer; the transport adds none. */
      readonly json: Readonly<Record<string, unknown>>;
      /** More fields, with long values: text in UTF-8, or base64 with `isBase64`. */
      readonly long?: Readonly<Record<string, BytesInPieces>>;
      /** Holds what `long` is read from. The transport disposes of it, in every ending. */
      readonly held?: AsyncDisposable;
      readonly isBase64?: boolean;
      /** 200 when absent. */
      readonly status?: number;
    }
  | { readonly text: string }
  | {
      /**
       * Events as clients read them, one by one at the client's pace. What throws here is sent as an event `error`, so
       * refuse what can be refused before the answer. Reading ends early when the client leaves.
       */
      readonly events: AsyncIterable<Readonly<Record<string, unknown>>>;
    };

/** A route of the interface, for all transports. */
export interface ShellRoute {
  readonly method: "GET" | "POST" | "DELETE";
  /** `:name` stands for a segment. The first route that matches is used. */
  readonly path: `/${string}`;
  /** @throws ShellError, or anything else, which is answered as an error of the server. */
  handle(request: ShellRequest): Promise<ShellAnswer>;
}

/** Fields that every successful answer has. */
export function success(
  fields: Readonly<Record<string, unknown>> = {},
): Extract<ShellAnswer, { readonly json: unknown }> {
  return { json: { success: true, ...fields, timestamp: new Date().toISOString() } };
}

/** An event with its time. */
export function event(
  type: string,
  fields: Readonly<Record<string, unknown>> = {},
): Readonly<Record<string, unknown>> {
  return { type, timestamp: new Date().toISOString(), ...fields };
}

/** Encoding that a client asks for, of output that may be no UTF-8. */
export function isBase64(encoding: string | null | undefined): boolean {
  return encoding === "base64";
}

/** An event that ends a stream: one client reads `data`, its type says `error`. */
export function errorEvent(message: string): Readonly<Record<string, unknown>> {
  return event("error", { data: message, error: message });
}

/** The body as its schema has it. @throws ShellError VALIDATION_FAILED */
export function inputOf<S extends z.ZodType>(schema: S, body: unknown): z.infer<S> {
  if (body === undefined) throw new ShellError("VALIDATION_FAILED", "The request has no JSON body");
  const parsed = schema.safeParse(body);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  const field = issue?.path.join(".") ?? "";
  throw new ShellError(
    "VALIDATION_FAILED",
    `Invalid request: ${field === "" ? "" : `${field}: `}${issue?.message ?? "invalid"}`,
    {
      validationErrors: parsed.error.issues.slice(0, 10).map(({ path, message, code }) => ({
        field: path.join("."),
        message,
        code,
      })),
    },
  );
}

/** Clients send it for commands that belong to no session. */
export const SESSIONLESS = "__DISABLE_SESSION__";
const DEFAULT_SESSION = "default";
const MAX_ID_LENGTH = 256;

/** Id of a session in a body; absent and empty mean the default one. */
export const sessionIdField = z
  .string()
  .max(MAX_ID_LENGTH)
  .refine((id) => id === "" || id.trim() !== "", "a session id is not blank")
  .refine((id) => !/\p{Cc}/u.test(id), "a session id has no control characters");

/** The session that a request means: its body's, else that of its headers where the route looks there. */
export function sessionIdOf(...given: readonly (string | undefined)[]): string {
  return given.find((id) => id !== undefined && id !== "") ?? DEFAULT_SESSION;
}

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

/** Passes a request of a transport to its route. @throws as the route */
export type Dispatch = (
  route: ShellRoute,
  request: Omit<ShellRequest, "sessions" | "processes">,
) => Promise<ShellAnswer>;

interface DispatcherOptions {
  readonly shells: ShellSessions;
  readonly commands: Commands;
  readonly clock: Clock;
  readonly config: ShellSessionsConfig;
  readonly spool: Spool;
}

export function dispatcher({ shells, ...options }: DispatcherOptions): Dispatch {
  const processes = new WeakMap<LiveSandbox, SandboxProcesses>();
  return async (route, request) => {
    const { sandbox } = request;
    const sessions = await shells.of(sandbox);
    const known = processes.get(sandbox) ?? new SandboxProcesses({ sandbox, ...options });
    processes.set(sandbox, known);
    return await route.handle({ ...request, sessions, processes: known });
  };
}
