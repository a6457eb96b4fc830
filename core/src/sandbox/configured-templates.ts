import type { SandboxesConfig } from "./sandboxes-config.js";
import { findTemplate } from "./template-reference.js";
import type { TemplateFacts, Templates } from "./templates.js";

type Settings = SandboxesConfig["templates"];

/** The templates of the configuration. */
export function configuredTemplates(settings: Settings): Templates {
  const factsOf = (name: string, { aliases, limits }: Settings[string]): TemplateFacts => ({
    name,
    aliases,
    limits,
  });
  return {
    all: () => Object.entries(settings).map(([name, template]) => factsOf(name, template)),
    find(reference) {
      const found = findTemplate(settings, reference);
      return factsOf(found.name, found.settings);
    },
  };
}
