import { definePlugin } from "@coppice/core";
import { Backends } from "@coppice/core/backend";
import { diagnoseHost } from "./diagnose-host.js";
import { LinuxNamespacesBackend } from "./linux-namespaces-backend.js";
import { linuxNamespacesConfig } from "./linux-namespaces-config.js";
import { REASONS } from "./reasons.js";

export const plugin = definePlugin({
  name: "linux-namespaces",
  reasons: REASONS,
  config: linuxNamespacesConfig,
  requires: { backends: Backends },
  setup(plugin, { backends }) {
    const backend = new LinuxNamespacesBackend(plugin.config, plugin.log);
    plugin.onStop(() => backend.close());
    backends.add(backend);
    plugin.health("linux-namespaces", async () => {
      const found = await backend.found();
      if (found === undefined) return undefined;
      const limits = found.limits.map(({ name, how }) => [name, how]);
      return { ...Object.fromEntries(limits), egress: found.egress?.description ?? "none" };
    });
    plugin.diagnose("linux-namespaces", async (examination) =>
      diagnoseHost(plugin.config, await backend.found(), examination),
    );
  },
});
