import { join } from "node:path";
import { Clock, definePlugin, Sandboxes, Targets } from "@coppice/core";
import {
  downloadLinkGuard,
  DownloadLinks,
  downloadLinkTarget,
  persistentKey,
} from "./http/download-links.js";
import { filesConfig } from "./files-config.js";
import { mountFiles } from "./http/files-routes.js";
import { mountFilesystemRpc } from "./rpc/filesystem-rpc.js";
import { DirectoryWatches, Watchers } from "./watch/watchers.js";
import { REASONS } from "./reasons.js";

/** The files of sandboxes: `filesystem.Filesystem`, `/files` up and down, links to them, directory watches. */
export const plugin = definePlugin({
  name: "files",
  reasons: REASONS,
  config: filesConfig,
  requires: { clock: Clock, sandboxes: Sandboxes, targets: Targets },
  provides: [DirectoryWatches],
  setup(plugin, { clock, sandboxes, targets }) {
    const { config } = plugin;
    plugin.onReload(["maxFilesPerUpload", "maxListEntries", "maxUpload"]);
    const watchers = new Watchers({ ...config, clock });
    plugin.bindValue(DirectoryWatches, watchers);
    plugin.onStop(() => watchers.close());

    const links = new DownloadLinks({ clock, lifetimeMs: config.downloadLinkLifetime });
    targets.add(downloadLinkTarget(links, sandboxes));
    plugin.onStart(async () => links.useKey(await persistentKey(join(plugin.dataDir(), "link-key"))));

    mountFilesystemRpc(plugin.rpc("envd"), { watchers, config });
    const linked = plugin.http("envd", { guard: downloadLinkGuard(links) });
    mountFiles(plugin.http("envd", { errors: "e2b" }), { own: plugin.http("envd"), linked, links, config });
  },
});
