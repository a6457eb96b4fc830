import { SandboxError } from "@coppice/core";

/** Pairs that a sandbox's metadata must all have. */
export type MetadataFilter = ReadonlyMap<string, string>;

/**
 * Parses the `metadata` query value, which the HTTP layer has decoded once. The SDKs encode keys and values, then the
 * pairs, then the query, so two layers are left; a plain `user=abc` has none.
 * @throws SandboxError invalid_argument
 */
export function parseMetadataFilter(value: string): MetadataFilter {
  const filter = new Map<string, string>();
  const pairs = decode(value);
  if (pairs === "") return filter;
  for (const pair of pairs.split("&")) {
    const split = pair.indexOf("=");
    if (split < 1) throw invalid("expected key=value pairs");
    filter.set(decode(pair.slice(0, split)), decode(pair.slice(split + 1)));
  }
  return filter;
}

/** True when the metadata has every pair of the filter. */
export function matchesMetadata(metadata: Readonly<Record<string, string>>, filter: MetadataFilter): boolean {
  return [...filter].every(([key, value]) => Object.hasOwn(metadata, key) && metadata[key] === value);
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text.replaceAll("+", " "));
  } catch {
    throw invalid("a '%' that encodes nothing");
  }
}

function invalid(reason: string): SandboxError {
  return new SandboxError("request_invalid", `validation error: metadata: ${reason}`);
}
