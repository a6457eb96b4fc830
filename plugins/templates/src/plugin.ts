import { definePlugin } from "@coppice/core";
import { templatesConfig } from "./templates-config.js";

/** Templates that are built: their images, their builds by E2B's clients, and their start commands. */
export const plugin = definePlugin({
  name: "templates",
  config: templatesConfig,
  setup() {},
});
