import { createReadStream } from "node:fs";
import { request as requestHttp } from "node:http";
import { request as requestHttps } from "node:https";
import { Transform } from "node:stream";
import { pipeline } from "node:stream/promises";
import { SandboxError } from "@coppice/core";
import { z } from "zod";
import type { PackedFolder } from "../uploads/pack-folder.js";
import { transferProgress } from "./progress-line.js";
import type { BuildTarget } from "./run-build.js";

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
