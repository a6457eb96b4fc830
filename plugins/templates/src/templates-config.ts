import { duration, size } from "@coppice/core";
import { z } from "zod";

const count = () => z.int().positive();

export const templatesConfig = z.strictObject({
  maxConcurrentBuilds: count().default(20).describe("Builds of one tenant that may run at one time."),
  buildTimeout: duration("1h").describe("Time that a build may take."),
  maxUpload: size("1GiB").describe("Largest archive of files for one COPY step."),
});

export type TemplatesConfig = z.infer<typeof templatesConfig>;
