import type { Listener } from "@coppice/core";

/**
 * The lines that point an E2B SDK at this server, to be pasted into a shell.
 * @param apiKey shown only where nobody but this machine can use it.
 */
export function sdkEnvironment(listener: Listener, apiKey: string | undefined): readonly string[] {
  const shownKey = listener.isLoopback ? (apiKey ?? "e2b_0") : "<one of plugins.sandbox-api.apiKeys>";
  return [
    "Point an E2B SDK at it:",
    `  export E2B_API_URL=${listener.url}`,
    `  export E2B_SANDBOX_URL=${listener.url}`,
    `  export E2B_API_KEY=${shownKey}`,
  ];
}
