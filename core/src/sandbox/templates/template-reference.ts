import { SandboxError } from "../../kernel/errors.js";
import type { SandboxesConfig } from "../model/sandboxes-config.js";

/** Parts of a client's `[namespace/]alias[:tag]`, lower-cased; the name is all before the tag. */
export interface TemplateReference {
  readonly name: string;
  /** A tag, or a build's UUID. */
  readonly tag: string;
}

export const DEFAULT_TAG = "default";
const LONGEST = 256;
const NAME = /^[a-z0-9-_]+$/;
const TAG = /^[a-z0-9-_.]+$/;
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/**
 * Parses `name`, `name:tag`, `namespace/name` or an id.
 * @param isNew true for a name that is given: a build's UUID is no tag then.
 * @throws SandboxError invalid_argument `Invalid template reference: …`
 */
export function parseTemplateReference(text: string, { isNew = false } = {}): TemplateReference {
  if (text.length > LONGEST) throw invalid(`longer than ${LONGEST} characters`);
  const reference = text.trim().toLowerCase();
  const [name = "", tag = DEFAULT_TAG, ...moreTags] = reference.split(":");
  const names = name.split("/");
  if (moreTags.length > 0) throw invalid("more than one ':'");
  if (names.length > 2) throw invalid("more than one '/'");
  if (!names.every((part) => NAME.test(part))) {
    throw invalid("a name consists of letters, digits, '-' and '_'");
  }
  if (!TAG.test(tag)) throw invalid("a tag consists of letters, digits, '-', '_' and '.'");
  if (isNew && UUID.test(tag)) throw invalid("a tag cannot be a UUID");
  return { name, tag };
}

/**
 * Main name of the configured template of a reference, which has its name or an alias; undefined when there is none.
 * @throws SandboxError not_found for a tag, with E2B's text.
 */
export function findTemplate(
  templates: SandboxesConfig["templates"],
  { name, tag }: TemplateReference,
): string | undefined {
  for (const [templateName, settings] of Object.entries(templates)) {
    if (templateName !== name && !settings.aliases.includes(name)) continue;
    if (tag !== DEFAULT_TAG) {
      throw new SandboxError("template_tag_not_found", `tag '${tag}' does not exist for template '${name}'`);
    }
    return templateName;
  }
  return undefined;
}

export function hasTemplate(templates: SandboxesConfig["templates"], name: string): boolean {
  return Object.entries(templates).some(
    ([templateName, { aliases }]) => templateName === name || aliases.includes(name),
  );
}

function invalid(reason: string): SandboxError {
  return new SandboxError("template_reference_invalid", `Invalid template reference: ${reason}`);
}
