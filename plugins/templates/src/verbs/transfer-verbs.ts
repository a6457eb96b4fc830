import { SandboxError, type VerbAction } from "@coppice/core";
import { z } from "zod";
import {
  accountOf,
  CACHE_OPTION,
  CPU_OPTION,
  MEMORY_OPTION,
  PASSWORD_OPTION,
  requestOf,
  URL_OPTION,
  USERNAME_OPTION,
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
export const templatePush: VerbAction<TemplatesConfig> = (command, { print, server, exit }) =>
  command
    .description(
      "pushes a template, or a snapshot of one of its sandboxes, to a registry, by a running server",
    )
    .argument("<name[:tag]>", "with --snapshot the name or id of a snapshot")
    .argument("<image>")
    .option("--snapshot", "pushes a snapshot")
    .option(...USERNAME_OPTION)
    .option(...PASSWORD_OPTION)
    .option(...URL_OPTION)
    .addHelpText(
      "after",
      "\nExample:\n  coppice template push coppice.yaml my-app:v1 registry.example.com/team/my-app:v1",
    )
    .action(async (name, image, values) => {
      const registry = await accountOf(values);
      const body = { [values.snapshot ? "snapshot" : "template"]: name, image, registry };
      const code = await withInterrupt(async (signal) => {
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
      exit(code);
    });

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
export const templatePull: VerbAction<TemplatesConfig> = (command, context) =>
  command
    .description("makes a template of an image, on a running server")
    .argument("<name[:tag]>")
    .argument("<image>")
    .option(...USERNAME_OPTION)
    .option(...PASSWORD_OPTION)
    .option(...CPU_OPTION)
    .option(...MEMORY_OPTION)
    .option(...CACHE_OPTION)
    .option(...URL_OPTION)
    .addHelpText("after", "\nExample:\n  coppice template pull coppice.yaml debian debian:12")
    .action(async (name, image, values) => {
      const account = await accountOf(values);
      const request = requestOf(name, values);
      const hasLimits = values.cpuCount !== undefined || values.memoryMb !== undefined;
      const code = await runBuild(context.server(values), context, {
        request,
        prepare: async () => ({
          fromImage: image,
          ...(account && { fromImageRegistry: account }),
          force: !values.cache,
          restore: { limits: !hasLimits },
        }),
      });
      context.exit(code);
    });
