import type { StartCommand } from "@coppice/plugin-commands";
import { z } from "zod";

/** A command of a body. Every command is detached. */
export const startBody = z.object({
  argv: z.tuple([z.string().min(1)], z.string()),
  env: z.record(z.string(), z.string()).nullish(),
  cwd: z.string().nullish(),
  detach: z.boolean().nullish(),
});

export function toStartCommand({ argv, env, cwd }: z.infer<typeof startBody>): StartCommand {
  const [path, ...args] = argv;
  return { path, args, environment: env ?? undefined, cwd: cwd ?? undefined, input: "none" };
}
