import { SandboxError } from "@coppice/core";
import type { TemplatesStore } from "../store/templates-store.js";
import { findTemplate } from "./find-template.js";
import { REASONS } from "../reasons.js";

/**
 * Packages of the build of a tag.
 * @param reference name[:tag]. @throws SandboxError template_not_found, build_not_found
 */
export function contentsOf(store: TemplatesStore, reference: string): readonly string[] {
  const [name = "", tag = "default"] = reference.split(":");
  const build = store.builds.tagged(findTemplate(store, name).id, tag);
  const contents = build?.result && store.images.contentsOf(build.result.image);
  if (contents !== undefined) return contents;
  const message = `the contents of '${reference}' are not known: it has no build that is ready, or one of an earlier version`;
  throw new SandboxError(REASONS.build_not_found, message);
}
