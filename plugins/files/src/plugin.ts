import { Clock, definePlugin } from "@coppice/core";
import { FileService } from "./file-service.js";
import { filesConfig } from "./files-config.js";
import { registerFilesRoutes } from "./files-routes.js";
import { registerFilesystemRpc } from "./filesystem-rpc.js";
import { Watchers } from "./watchers.js";

/** The files of sandboxes: `filesystem.Filesystem`, `/files` up and down, directory watches. */
export const plugin = definePlugin({
  name: "files",
  config: filesConfig,
  requires: { clock: Clock },
  setup(plugin, { clock }) {
    const { config } = plugin;

    const watchers = new Watchers({ ...config, clock });
    plugin.onStop(() => watchers.close());

    const service = new FileService({ ...config, watchers });

    registerFilesystemRpc(plugin.rpc("envd"), { service, watchers, keepaliveMs: config.keepalive });
    registerFilesRoutes(plugin.http("envd"), {
      service,
      maxUploadBytes: config.maxUpload,
      maxParts: config.maxFilesPerUpload,
      gzipLevel: config.gzipLevel,
    });
  },
});
