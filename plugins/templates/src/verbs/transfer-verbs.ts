import { parseArgs } from "node:util";
import { SandboxError, type VerbAction } from "@coppice/core";
import { z } from "zod";
import {
  ACCOUNT,
  ACCOUNT_USAGE,
  accountOf,
  BUILD_OPTIONS,
  BUILD_USAGE,
  CONNECTION,
  CONNECTION_USAGE,
  requestOf,
} from "../client/build-options.js";
import { ProgressLine, transferProgress } from "../client/progress-line.js";
import { EXIT_INTERRUPTED, runBuild, withInterrupt } from "../client/run-build.js";
import type { TemplatesConfig } from "../templates-config.js";
import { transfer } from "../model/builder.js";
import { REASONS } from "../reasons.js";

const line = z.object({
  progress: transfer.optional(),
  digest: z.string().optional(),
  error: z.object({ message: z.string() }).optional(),
});

/** Pushes a template, or a snapshot of one of its sandboxes, to a registry, by a running server. Prints the digest. */
export const templatePush: VerbAction<TemplatesConfig> = {
  usage: `<name[:tag]> <image> [--snapshot] ${ACCOUNT_USAGE} ${CONNECTION_USAGE}`,
  async run({ args, print, server }) {
    const { values, positionals } = parseArgs({
      args: [...args],
      allowPositionals: true,
      options: { ...CONNECTION, ...ACCOUNT, snapshot: { type: "boolean", default: false } },
    });
    const [name, image, ...others] = positionals;
    if (name === undefined || image === undefined || others.length > 0)
      throw new SandboxError("usage_invalid", "name a template, or a snapshot with --snapshot, and an image");
    const registry = await accountOf(values);
    const body = { [values.snapshot ? "snapshot" : "template"]: name, image, registry };
    return withInterrupt(async (signal) => {
      using shown = new ProgressLine(print);
      try {
        const answer = await server(values).request({
          method: "POST",
          path: "/templates/push",
          body,
          signal,
        });
        for await (const text of linesOf(answer)) {
          const { progress, digest, error } = line.parse(JSON.parse(text));
          if (progress !== undefined) shown.show(transferProgress({ ...progress, total: progress.total }));
          if (error !== undefined) throw new SandboxError(REASONS.image_not_pushed, error.message);
          if (digest === undefined) continue;
          shown.print(`${image}@${digest}`);
          return 0;
        }
      } catch (error) {
        if (signal.aborted) return EXIT_INTERRUPTED;
        // fetch throws it when the connection breaks during the body.
        if (!(error instanceof TypeError)) throw error;
      }
      throw new SandboxError(REASONS.image_not_pushed, "the server ended before the push");
    });
  },
};

async function* linesOf({ body }: Response): AsyncIterable<string> {
  let rest = "";
  for await (const text of body?.pipeThrough(new TextDecoderStream()) ?? []) {
    const lines = (rest + text).split("\n");
    rest = lines.pop() ?? "";
    yield* lines;
  }
}

/**
 * Makes a template of an image, on a running server. One that was pushed has its configuration again, and its limits
 * unless the command line names some.
 */
export const templatePull: VerbAction<TemplatesConfig> = {
  usage: `<name[:tag]> <image> ${ACCOUNT_USAGE} ${BUILD_USAGE}`,
  async run(context) {
    const { values, positionals } = parseArgs({
      args: [...context.args],
      allowPositionals: true,
      options: { ...BUILD_OPTIONS, ...ACCOUNT },
    });
    const [name, image, ...others] = positionals;
    if (name === undefined || image === undefined || others.length > 0)
      throw new SandboxError("usage_invalid", "name a template and an image");
    const account = await accountOf(values);
    const request = requestOf(name, values);
    const hasLimits = values["cpu-count"] !== undefined || values["memory-mb"] !== undefined;
    return runBuild(context.server(values), context, {
      request,
      prepare: async () => ({
        fromImage: image,
        ...(account && { fromImageRegistry: account }),
        force: values["no-cache"],
        restore: { limits: !hasLimits },
      }),
    });
  },
};
