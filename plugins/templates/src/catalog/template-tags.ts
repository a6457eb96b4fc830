import { SandboxError } from "@coppice/core";
import type { TemplateRecord } from "../model/template-record.js";
import type { TemplatesStore } from "../store/templates-store.js";
import { parseTag, requireRoomForTags } from "./build-requests.js";
import { Catalog } from "./catalog.js";
import { REASONS } from "../reasons.js";

/** Further tags for a build. */
export interface WantedTags {
  readonly template: TemplateRecord;
  /** As its caller calls the template. */
  readonly name: string;
  /** One that leads to the build, or the id of the build. */
  readonly tag: string;
  /** As `parseTags` returns them. */
  readonly tags: readonly string[];
}

/** Gives a ready build more tags. @returns its id. @throws SandboxError with E2B's texts */
export function assignTags(
  store: TemplatesStore,
  { template, name, tag, tags }: WantedTags,
  { maxTags, nowMs }: { readonly maxTags: number; readonly nowMs: number },
): string {
  const build = new Catalog(() => store).tagged(template, tag);
  if (build === undefined) {
    const text = `Template '${name}' with tag '${tag}' not found`;
    throw new SandboxError("template_tag_not_found", text);
  }
  requireRoomForTags(store, { templateId: template.id, tags, maxTags });
  store.atOnce(() => {
    for (const one of tags) store.tags.assign(template.id, one, build.id, nowMs);
  });
  return build.id;
}

/** Checks tags. @returns each once. @throws SandboxError with E2B's texts, also for none. */
export function parseTags(tags: readonly string[]): readonly string[] {
  if (tags.length === 0)
    throw new SandboxError(REASONS.template_build_invalid, "At least one tag is required");
  return [...new Set(tags.map(parseTag))];
}

/** As `parseTags`, for tags to remove: `default` cannot be. */
export function parseRemovedTags(tags: readonly string[]): readonly string[] {
  const removed = parseTags(tags);
  if (!removed.includes("default")) return removed;
  throw new SandboxError(REASONS.template_build_invalid, "Cannot delete the 'default' tag");
}
