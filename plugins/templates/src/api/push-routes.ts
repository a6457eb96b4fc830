import { PassThrough } from "node:stream";
import { readJsonBody, requestOf, type Router, SandboxError, tenantOf } from "@coppice/core";
import { z } from "zod";
import type { PreparedPush } from "../queue/template-pushes.js";
import type { ApiServices } from "./api-services.js";
import { registryBody } from "./build-bodies.js";

const MAX_NAME = 1000;
/** Least time between two lines about the same phase. */
const REPORT_EVERY_MS = 200;
const INTERNAL = "An internal error occurred. Please try again or contact support.";

const name = z.string().min(1).max(MAX_NAME);
const pushBody = z
  .object({
    template: name.nullish(),
    snapshot: name.nullish(),
    /** `registry.example.com/team/name:tag` */
    image: name,
    registry: registryBody.nullish(),
  })
  .transform(({ template, snapshot, image, registry }) => ({
    source: template ? { template } : { snapshot: snapshot ?? "" },
    target: { reference: image, credentials: registry ?? undefined },
    isOne: Boolean(template) !== Boolean(snapshot),
  }));

/**
 * The route that pushes a template or a snapshot to a registry. Its answer has a line of JSON for each report, and a
 * last one with the digest or the error. The push ends with its client.
 */
export function mountPushes(router: Router, services: ApiServices): void {
  const { config, pushes, peers } = services;

  router.post("/templates/push", async (ctx) => {
    const { isOne, ...wanted } = await readJsonBody(ctx.req, pushBody, { limitBytes: config.maxBody });
    if (!isOne) throw new SandboxError("request_invalid", "name either a template or a snapshot");
    const reference = "template" in wanted.source ? wanted.source.template : wanted.source.snapshot;
    await peers.requireHere(ctx, { kind: "template", reference });
    const push = pushes.prepare({ tenant: tenantOf(ctx), ...wanted });
    const lines = new PassThrough();
    ctx.type = "application/x-ndjson";
    ctx.body = lines;
    void writeLines(push, lines, { ...services, signal: requestOf(ctx).signal });
  });
}

/** Never rejects. */
async function writeLines(
  push: PreparedPush,
  lines: PassThrough,
  { clock, log, signal }: Pick<ApiServices, "clock" | "log"> & { readonly signal: AbortSignal },
): Promise<void> {
  const write = (value: object): void => void lines.write(`${JSON.stringify(value)}\n`);
  let last: { readonly phase: string; readonly atMs: number } | undefined;
  try {
    const digest = await push.run((transfer) => {
      const atMs = clock.now();
      const isEnd = transfer.done === transfer.total;
      if (last?.phase === transfer.phase && atMs - last.atMs < REPORT_EVERY_MS && !isEnd) return;
      last = { phase: transfer.phase, atMs };
      write({ progress: transfer });
    }, signal);
    write({ digest });
  } catch (error) {
    const isTold = error instanceof SandboxError && error.code !== "internal";
    if (!isTold && !signal.aborted) log.error({ err: error }, "a push failed unexpectedly");
    write({ error: { message: isTold ? error.message : INTERNAL } });
  } finally {
    lines.end();
  }
}
