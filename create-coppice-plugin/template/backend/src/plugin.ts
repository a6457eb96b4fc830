import { isAbsolute } from "node:path";
import { definePlugin } from "@coppice/core";
import { Backends } from "@coppice/core/backend";
import { z } from "zod";
import { DirectoryBackend } from "./directory-backend.js";

export default definePlugin({
  name: "{{plugin}}",
  config: z.strictObject({
    // `coppice backup` leaves out the folder of this name's setting: the files in it are a guest's.
    directory: z
      .string()
      .refine(isAbsolute, "an absolute path")
      .describe("Directory for the files of sandboxes."),
  }),
  requires: { backends: Backends },
  setup(plugin, { backends }) {
    backends.add(new DirectoryBackend(plugin.config.directory));
  },
});
