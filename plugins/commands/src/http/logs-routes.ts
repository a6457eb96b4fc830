import { queryNumber, type Router, SandboxError, targetOf } from "@coppice/core";
import { describeExit } from "@coppice/core/backend";
import { z } from "zod";
import type { OutputLogConfig } from "../commands-config.js";
import type { Commands, LoggedCommand } from "../contract/commands.js";
import { pageBody, pageJson } from "../contract/page-json.js";
import { REASONS } from "../reasons.js";

const STREAM_NAMES = { stdout: "stdout", stderr: "stderr", pty: "terminal" } as const;
// A page always has room for a whole character.
const MIN_PAGE = 4;
const DEFAULT_PAGE = 256 * 1024;

const byteCount = queryNumber("a number of bytes");

/** Queries of a page of output: from a byte offset on, `next_cursor` of the page before. */
export function logPageQuery({ maxPage }: { readonly maxPage: number }) {
  return z.object({
    cursor: byteCount.default(0),
    limit: byteCount
      .refine((bytes) => bytes >= MIN_PAGE && bytes <= maxPage, {
        error: `expected ${MIN_PAGE} to ${maxPage} bytes`,
      })
      .default(Math.min(DEFAULT_PAGE, maxPage)),
    encoding: z.enum(["utf-8", "base64"]).default("utf-8"),
  });
}

/** Serves the log of commands page by page, also of ended ones. */
export function mountLogs(
  router: Router,
  { commands, config }: { readonly commands: Commands; readonly config: OutputLogConfig },
): void {
  const logsQuery = logPageQuery(config).extend({
    /** Output of this stream only; the cursor still counts all streams. */
    stream: z.enum(["stdout", "stderr", "pty"]).optional(),
  });

  router.get("/commands/:pid/logs", async (context) => {
    const query = logsQuery.safeParse(context.query);
    if (!query.success) {
      const [issue] = query.error.issues;
      throw new SandboxError("request_invalid", `${issue?.path.join(".")}: ${issue?.message}`);
    }
    const sandbox = targetOf(context);
    const { cursor, limit, stream, encoding } = query.data;
    const selector = readSelector(context.params["pid"] ?? "");
    const logs = commands.log(sandbox.record.id);
    const { id } = await logs.find(selector);
    const page = await logs.page(id, { cursor, limitBytes: limit });
    const { command } = page;
    const answer = pageJson(page, {
      wanted: stream === undefined ? undefined : STREAM_NAMES[stream],
      isText: encoding === "utf-8",
      fields: {
        command_id: command.id,
        pid: command.pid,
        phase: command.phase,
        exit_code: exitCode(command.end),
        started_at: new Date(command.startedAtMs).toISOString(),
        ...(command.end !== undefined && { exited_at: new Date(command.end.endedAtMs).toISOString() }),
      },
    });
    context.type = "json";
    context.body = await pageBody(answer);
  });
}

function readSelector(text: string): { readonly pid: number } | { readonly id: string } {
  if (/^\d{1,10}$/.test(text)) return { pid: Number(text) };
  if (/^[0-9a-f-]{36}$/.test(text)) return { id: text };
  throw new SandboxError(
    REASONS.process_selector_invalid,
    "a command is named by its pid, a number, or by its id",
  );
}

function exitCode(end: LoggedCommand["end"]): number | null {
  return end?.exit === undefined ? null : describeExit(end.exit).exitCode;
}
