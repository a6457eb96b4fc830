import { SandboxError, type VerbAction } from "@coppice/core";
import { assignTags, parseRemovedTags, parseTags } from "../catalog/build-requests.js";
import { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import { findTemplate, findTenantsTemplate, nameOf } from "./find-template.js";
import { SERVER } from "../model/template-record.js";
import { REASONS } from "../reasons.js";

/** Gives a ready build more tags: the build that a tag leads to, or one by its id. */
export const templateTag: VerbAction<TemplatesConfig> = (command, { clock, config, dataDir, print }) =>
  command
    .description("gives a ready build more tags")
    .argument("<build>", "name, name:tag, or the id of a build behind the colon")
    .argument("<tag...>")
    .addHelpText("after", "\nExample:\n  coppice template tag coppice.yaml acme/web:v1 stable")
    .action((reference, given) => {
      const [name = "", tag = "default"] = reference.split(":");
      const wanted = parseTags(given);
      using store = new TemplatesStore(dataDir());
      const template = findTenantsTemplate(store, name);
      const limits = { maxTags: config.maxTags, nowMs: clock.now() };
      const build = assignTags(store, { template, name, tag, tags: wanted }, limits);
      for (const one of wanted) print(`${nameOf(template)}:${one} is build ${build}`);
    });

/** Takes tags from a template. Its builds stay. */
export const templateUntag: VerbAction<TemplatesConfig> = (command, { dataDir, print }) =>
  command
    .description("takes tags from a template; its builds stay")
    .argument("<name>")
    .argument("<tag...>")
    .addHelpText("after", "\nExample:\n  coppice template untag coppice.yaml acme/web stable")
    .action((name, given) => {
      const unwanted = parseRemovedTags(given);
      using store = new TemplatesStore(dataDir());
      const template = findTenantsTemplate(store, name);
      store.tags.remove({ templateId: template.id, name: unwanted });
      for (const one of unwanted) print(`${nameOf(template)}:${one} is removed`);
    });

/**
 * Removes a template with its builds, tags and logs. Its sandboxes and snapshots go on: backends keep the images that
 * they stand on.
 */
export const templateRemove: VerbAction<TemplatesConfig> = (command, { dataDir, print }) =>
  command
    .description("removes a template with its builds, tags and logs; its sandboxes go on")
    .argument("<name>", "or id")
    .option("--force", "removes one of the configuration, too")
    .addHelpText("after", "\nExample:\n  coppice template remove coppice.yaml acme/web")
    .action((name, { force }) => {
      using store = new TemplatesStore(dataDir());
      const removed = store.atOnce(() => {
        const template = findTemplate(store, name);
        if (template.owner === SERVER && !force) {
          const text = `template '${name}' is one of this server's configuration: without it, new sandboxes have what their backend has by that name, and builds on it fail, until the next start builds it again. --force removes it`;
          throw new SandboxError(REASONS.template_in_use, text);
        }
        // Only the server can end it.
        if (store.builds.unfinished(template.id).some(({ state }) => state === "building")) {
          const text = `template '${name}' is being built: wait for the build; one that a crash has cut ends at the next start`;
          throw new SandboxError(REASONS.template_in_use, text);
        }
        store.templates.remove({ id: template.id });
        return template;
      });
      print(`template ${nameOf(removed)} is removed`);
    });
