import type { Listener } from "@coppice/core";

/** The lines that point an E2B SDK at this server, to be pasted into a shell. The key is said by who checks keys. */
export function sdkEnvironment(listeners: readonly Listener[]): readonly string[] {
  const urlOf = (wanted: string): string | undefined => listeners.find(({ name }) => name === wanted)?.url;
  const [api, volumes] = [urlOf("api"), urlOf("volumes")];
  if (api === undefined) return [];
  return [
    "Point an E2B SDK at it:",
    `  export E2B_API_URL=${api}`,
    `  export E2B_SANDBOX_URL=${api}`,
    ...(volumes === undefined ? [] : [`  export E2B_VOLUME_API_URL=${volumes}`]),
  ];
}
