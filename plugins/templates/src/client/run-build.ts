import { setTimeout as pause } from "node:timers/promises";
import { createReadStream } from "node:fs";
import { request as requestHttp } from "node:http";
import { request as requestHttps } from "node:https";
import { Transform } from "node:stream";
import { pipeline } from "node:stream/promises";
import { printFailure, SandboxError, type VerbAction } from "@coppice/core";
import { z } from "zod";
import { type Progress, ProgressLine, transferProgress } from "./progress-line.js";
import { transfer } from "../model/builder.js";
import type { PackedFolder } from "../uploads/folder-files.js";

/** 128 and SIGINT. */
export const EXIT_INTERRUPTED = 130;

/** Runs something that the first Ctrl-C aborts. The second one ends this process at once. */
export async function withInterrupt<T>(run: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const aborting = new AbortController();
  const onInterrupt = (): void => {
    if (aborting.signal.aborted) process.exit(EXIT_INTERRUPTED);
    aborting.abort(new Error("interrupted"));
  };
  process.on("SIGINT", onInterrupt);
  process.on("SIGTERM", onInterrupt);
  try {
    return await run(aborting.signal);
  } finally {
    process.off("SIGINT", onInterrupt);
    process.off("SIGTERM", onInterrupt);
  }
}

type VerbContext = Parameters<VerbAction<unknown>>[1];
type ServerClient = ReturnType<VerbContext["server"]>;

/** A build as the command line asks for it. */
interface WantedBuild {
  /** Body of `POST /v3/templates`. */
  readonly request: object;
  /** Makes the body of the start, after everything that it needs was uploaded. */
  readonly prepare: (template: BuildTarget) => Promise<object>;
}

/** A requested build. */
export interface BuildTarget {
  readonly server: ServerClient;
  readonly templateId: string;
  readonly show: (progress: Progress) => void;
  readonly signal: AbortSignal;
}

const POLL_MS = 200;
const STEP = /^(?:CACHED )?\[builder (\d+)\/(\d+)\] (?!\[std)(.*?)(?: \[[0-9a-f]{64}\])?$/s;
const LONGEST_STEP = 60;

const requested = z.object({ templateID: z.string(), buildID: z.string() });
const status = z.object({
  status: z.string(),
  logEntries: z.array(z.object({ message: z.string() })),
  reason: z.object({ message: z.string() }).optional(),
  progress: transfer.optional(),
});

/** Builds a template on a server, and prints its log. Ctrl-C cancels the build. @returns the exit code */
export async function runBuild(
  server: ServerClient,
  { print }: Pick<VerbContext, "print">,
  { request, prepare }: WantedBuild,
): Promise<number> {
  return withInterrupt(async (signal) => {
    using line = new ProgressLine(print);
    const show = (progress: Progress): void => line.show(progress);
    const asked = await server.request({ method: "POST", path: "/v3/templates", body: request, signal });
    const { templateID, buildID } = requested.parse(await asked.json());
    const path = `/templates/${templateID}/builds/${buildID}`;
    const cancel = async (): Promise<void> => {
      await server.request({ method: "POST", path: `${path}/cancel` });
    };
    try {
      const body = await prepare({ server, templateId: templateID, show, signal });
      await server.request({ method: "POST", path: `/v2${path}`, body, signal });
    } catch (error) {
      await cancel().catch(() => undefined);
      if (signal.aborted) return EXIT_INTERRUPTED;
      throw error;
    }
    let isCancelled = false;
    for (let offset = 0; ;) {
      if (signal.aborted && !isCancelled) {
        isCancelled = true;
        await cancel();
      }
      const answer = await server.request({ path: `${path}/status?level=info&logsOffset=${offset}` });
      const { status: state, logEntries, reason, progress } = status.parse(await answer.json());
      for (const { message } of logEntries) {
        line.print(message);
        const [, number, count, text = ""] = STEP.exec(message) ?? [];
        if (number === undefined) continue;
        // The step of that number has only begun.
        const [done, total] = [Number(number) - 1, Number(count)];
        show({ what: `step ${number} of ${count}`, done, total, text: text.slice(0, LONGEST_STEP) });
      }
      offset += logEntries.length;
      if (logEntries.length > 0) continue;
      if (state === "ready") return 0;
      if (state === "error") {
        line[Symbol.dispose]();
        printFailure(`the build has failed: ${reason?.message}`);
        return isCancelled ? EXIT_INTERRUPTED : 1;
      }
      if (progress !== undefined && progress.done !== progress.total)
        show(transferProgress({ ...progress, total: progress.total }));
      await pause(POLL_MS);
    }
  });
}

const link = z.object({ present: z.boolean(), url: z.string().optional() });

/** Uploads the archive of a COPY step, unless the server has it. @throws SandboxError upload_invalid */
export async function uploadArchive(
  { server, templateId, show, signal }: BuildTarget,
  { path, bytes, hash }: PackedFolder,
): Promise<void> {
  const answer = await server.request({ path: `/templates/${templateId}/files/${hash}`, signal });
  const { present, url } = link.parse(await answer.json());
  if (present || url === undefined) return;
  let done = 0;
  const counter = new Transform({
    transform(chunk: Buffer, _encoding, next) {
      done += chunk.length;
      show({ ...transferProgress({ phase: "pushing", done, total: bytes }), what: "uploading" });
      next(null, chunk);
    },
  });
  const send = url.startsWith("https:") ? requestHttps : requestHttp;
  // Not by fetch, which does not tell a stream's length.
  const upload = send(url, { method: "PUT", headers: { "content-length": bytes }, signal });
  const status = new Promise<number>((resolve, reject) => {
    upload.on("error", reject);
    upload.on("response", (response) => {
      response.resume();
      resolve(response.statusCode ?? 0);
    });
  });
  await pipeline(createReadStream(path), counter, upload);
  const code = await status;
  if (code >= 300) throw new SandboxError("upload_invalid", `the server answered ${code} to an upload`);
}
