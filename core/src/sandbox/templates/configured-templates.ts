import type { FullLimits } from "../contract/full-limits.js";
import type { SandboxesConfig } from "../model/sandboxes-config.js";
import { findTemplate } from "./template-reference.js";
import type { TemplateFacts, Templates } from "./templates.js";

type Settings = SandboxesConfig["templates"];

/** The templates of the configuration. @param defaultsOf default limits of a backend, or of the default backend. */
export function configuredTemplates(
  settings: Settings,
  defaultsOf: (backend: string | undefined) => FullLimits | undefined,
): Templates {
  const factsOf = (name: string, { aliases, backend, limits }: Settings[string]): TemplateFacts => ({
    name,
    aliases,
    limits: { ...defaultsOf(backend), ...limits },
  });
  return {
    all: () => Object.entries(settings).map(([name, template]) => factsOf(name, template)),
    find(reference) {
      const found = findTemplate(settings, reference);
      return factsOf(found.name, found.settings);
    },
  };
}
