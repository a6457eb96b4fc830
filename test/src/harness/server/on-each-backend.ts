import { after, before, describe } from "node:test";
import { Sandbox } from "@e2b/code-interpreter";
import type { TestServer } from "@coppice/core/testing";
import { reasonWithoutFreebsdHost } from "../freebsd/freebsd-host.js";
import { pointSdkAt } from "./point-sdk-at.js";
import { type BackendName, type FullServerOptions, startFullServer } from "./start-full-server.js";

const SUITE_TIMEOUT_MS = 240_000;

/** Surroundings of a suite's tests. They are functions because nothing exists yet when the tests are declared. */
export interface BackendScene {
  readonly backend: BackendName;
  readonly server: () => TestServer;
  /** A sandbox that all tests of the suite share, created after the server's start. */
  readonly sandbox: () => Sandbox;
}

export interface EachBackendOptions extends Omit<FullServerOptions, "backend"> {
  /** Runs on `jail-freebsd`, too, whose host takes a while to be made; as a main case always. False when absent. */
  readonly onJails?: boolean | "main case";
  /** Time limit of the suite on each backend; four minutes when absent. */
  readonly timeoutMs?: number;
}

/**
 * Declares a suite once for each backend, with a server of its own that the SDK is pointed at. A backend
 * that this host cannot run is skipped, with the reason.
 */
export function onEachBackend(
  title: string,
  suite: (scene: BackendScene) => void,
  { onJails = false, timeoutMs = SUITE_TIMEOUT_MS, ...options }: EachBackendOptions = {},
): void {
  const onBackend = (backend: BackendName, skip: string | false): void => {
    describe(`${title}, on ${backend}`, { skip, timeout: timeoutMs }, () => {
      let server: TestServer;
      let sandbox: Sandbox;
      before(async () => {
        server = await startFullServer({ ...options, backend });
        pointSdkAt(server.url);
        sandbox = await Sandbox.create();
      });
      after(() => server.stop());
      suite({ backend, server: () => server, sandbox: () => sandbox });
    });
  };
  const withoutNamespaces = missingForNamespaces();
  // The way through a foreign server does not depend on the backend.
  if (process.env["COPPICE_TEST_FOREIGN"] === "1") {
    onBackend(withoutNamespaces === false ? "linux-namespaces" : "local-process", false);
    return;
  }
  onBackend("local-process", false);
  onBackend("linux-namespaces", withoutNamespaces);
  if (onJails !== false) {
    const reason = reasonWithoutFreebsdHost({ isMainCase: onJails === "main case" });
    onBackend("jail-freebsd", reason ?? false);
  }
}

export function missingForNamespaces(): string | false {
  if (process.platform !== "linux") return "it needs Linux";
  return process.getuid?.() === 0 ? false : "it needs root";
}
