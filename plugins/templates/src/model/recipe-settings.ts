import { z } from "zod";

const line = z.string().min(1);

/** A root of Debian packages. */
export const debianBase = z.strictObject({
  suite: z.string().regex(/^[a-z][a-z0-9-]*$/, "expected a suite of Debian, such as trixie"),
  packages: z
    .array(z.string().regex(/^[a-z0-9][a-z0-9+.-]+$/, "expected the name of a Debian package"))
    .default([]),
  snapshot: z
    .string()
    .regex(/^\d{8}T\d{6}Z$/, "expected a time of Debian's archive of earlier days, such as 20261124T060000Z")
    .optional()
    .describe("Time whose packages are taken"),
});

const base = z.union([
  z.strictObject({ image: line.describe("Reference of an OCI image, `docker.io/library/debian:12`") }),
  z.strictObject({
    debian: debianBase.describe("A root of Debian packages, made by mmdebstrap"),
  }),
  z.strictObject({ template: line.describe("Another template") }),
  z.strictObject({
    directory: line.describe(
      "A root file system on this host, which is copied, relative to the recipe's file",
    ),
  }),
  z.strictObject({
    dockerfile: line.describe(
      "A Dockerfile of one stage, which has the steps, relative to the recipe's file",
    ),
  }),
]);

/** How a template of the configuration is made. */
export const recipeSettings = z.strictObject({
  from: base.describe("What it starts from"),
  steps: z
    .string()
    .default("")
    .describe(
      "Instructions of a Dockerfile without FROM: RUN, ENV, ARG, USER, WORKDIR, and COPY of files beside the recipe",
    ),
  start: line.optional().describe("Command that runs in every sandbox, for `bash -l -c`"),
  ready: line.optional().describe("Command that ends with 0 when the sandbox is ready"),
});

export type RecipeSettings = z.infer<typeof recipeSettings>;
