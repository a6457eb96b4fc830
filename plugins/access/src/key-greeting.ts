import type { Listener } from "@coppice/core";

/** The line that gives an E2B SDK a key: one that lets in is shown only where nobody but this machine can use it. */
export function keyGreeting(listeners: readonly Listener[], apiKey: string | undefined): readonly string[] {
  const listener = listeners.find(({ name }) => name === "api");
  if (listener === undefined) return [];
  const shown = listener.isLoopback && apiKey !== undefined ? apiKey : "<of coppice keys create>";
  return [`  export E2B_API_KEY=${shown}`];
}
