import { posix } from "node:path";
import { checkCommand, type ExecCommand } from "../shell/session.js";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import { type CommandBody, commandBody } from "./command-body.js";
import { inputOf, type ShellRoute, success } from "./route.js";
import { sessionIdOf } from "./session-id.js";

const NEWLINE = 0x0a;

/** Commands that are waited for, or followed. */
export function commandRoutes(config: ShellSessionsConfig): readonly ShellRoute[] {
  const execute: ShellRoute = {
    method: "POST",
    path: "/api/execute",
    async handle({ body, headerSession, sessions }) {
      const input = inputOf(commandBody, body);
      const { command, sessionId } = input;
      const session = sessions.get(sessionIdOf(sessionId ?? undefined, headerSession), {
        cwd: startDirectory(input, config),
      });
      const { exitCode, stdout, stderr, truncated } = await session.exec(commandOf(input));
      return {
        ...success({
          success: exitCode === 0,
          exitCode,
          command,
          duration: 0,
          ...(truncated && { truncated }),
          ...(sessionId && { sessionId }),
        }),
        long: { stdout: withoutNewline(stdout), stderr: withoutNewline(stderr) },
        isBase64: input.encoding === "base64",
      };
    },
  };
  return [execute];
}

/** @throws ShellError for what no shell can take. */
export function commandOf({ command, cwd, env, timeoutMs }: CommandBody): ExecCommand {
  const wanted = {
    command,
    cwd: cwd ?? undefined,
    env: env ?? undefined,
    timeoutMs: timeoutMs ?? undefined,
  };
  checkCommand(wanted);
  return wanted;
}

/** Directory of a session that the request makes by naming it. */
function startDirectory({ cwd }: CommandBody, { workdir }: ShellSessionsConfig): string | undefined {
  return cwd ? posix.resolve(workdir, cwd) : undefined;
}

/** Clients expect the output of `echo hi` to be `hi`. */
function withoutNewline(output: Buffer): Buffer {
  return output.at(-1) === NEWLINE ? output.subarray(0, -1) : output;
}
