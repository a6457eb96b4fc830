import { describe } from "node:test";
import type { BackendName } from "./start-full-server.js";

const SUITE_TIMEOUT_MS = 60_000;

/** Declares a suite once for each backend; one that this host cannot run is skipped, with the reason. */
export function onEachBackend(title: string, suite: (backend: BackendName) => void): void {
  describe(`${title}, on local-process`, { timeout: SUITE_TIMEOUT_MS }, () => suite("local-process"));
  describe(`${title}, on linux-namespaces`, { skip: missingForNamespaces(), timeout: SUITE_TIMEOUT_MS }, () =>
    suite("linux-namespaces"),
  );
}

export function missingForNamespaces(): string | false {
  if (process.platform !== "linux") return "it needs Linux";
  return process.getuid?.() === 0 ? false : "it needs root";
}
