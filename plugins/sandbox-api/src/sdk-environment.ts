import type { Listener } from "@coppice/core";

/** The lines that point an E2B SDK at this server, to be pasted into a shell. The key is said by who checks keys. */
export function sdkEnvironment(listener: Listener): readonly string[] {
  return [
    "Point an E2B SDK at it:",
    `  export E2B_API_URL=${listener.url}`,
    `  export E2B_SANDBOX_URL=${listener.url}`,
  ];
}
