import type { Registry } from "prom-client";
import type { BootProblem } from "../kernel/errors.js";

export interface OwnedRegistry {
  readonly plugin: string;
  readonly registry: Registry;
}

/** Metrics outside of their plugin's prefix, and names that two plugins use. */
export function metricProblems(plugins: readonly OwnedRegistry[], core: Registry): readonly BootProblem[] {
  const owners = new Map(core.getMetricsAsArray().map(({ name }) => [name, "core"]));
  return plugins.flatMap(({ plugin, registry }) =>
    registry.getMetricsAsArray().flatMap(({ name }) => {
      const owner = owners.get(name);
      if (owner !== undefined)
        return [{ message: `'${owner}' and plugin '${plugin}' both have a metric ${name}` }];
      owners.set(name, plugin);
      const prefix = `coppice_${plugin.replaceAll("-", "_")}_`;
      return name.startsWith(prefix)
        ? []
        : [{ message: `plugin '${plugin}' has a metric ${name}, which does not start with ${prefix}` }];
    }),
  );
}
