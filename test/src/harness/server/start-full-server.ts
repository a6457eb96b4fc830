import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Plugin } from "@coppice/core";
import { startTestServer, type TestServer } from "@coppice/core/testing";
import access from "@coppice/plugin-access";
import commands from "@coppice/plugin-commands";
import envdCompat from "@coppice/plugin-envd-compat";
import events from "@coppice/plugin-events";
import files from "@coppice/plugin-files";
import jailFreebsd from "@coppice/plugin-jail-freebsd";
import jupyter from "@coppice/plugin-jupyter";
import commandsV1 from "@coppice/plugin-commands-v1";
import shellSessions from "@coppice/plugin-shell-sessions";
import legacyShims from "@coppice/plugin-legacy-shims";
import linuxNamespaces from "@coppice/plugin-linux-namespaces";
import localProcess from "@coppice/plugin-local-process";
import sandboxApi from "@coppice/plugin-sandbox-api";
import templates from "@coppice/plugin-templates";
import { API_KEY } from "./api-key.js";
import { type FreebsdHost, PYTHON_INSIDE, openFreebsdHost } from "../freebsd/freebsd-host.js";
import { PYTHON } from "../host/python.js";
import { startBehindForeign } from "./start-behind-foreign.js";
import { startFleetOfOne } from "./start-fleet-of-one.js";

// Selects the other transport to kernels for the same tests.
const TRANSPORT = process.env["COPPICE_TRANSPORT"];

export interface FullServerOptions {
  /** `local-process`, which every host can run, when absent. */
  readonly backend?: BackendName;
  /** For `jail-freebsd`: the host, which the caller disposes of. One for this server alone when absent. */
  readonly host?: FreebsdHost;
  /** Overrides of the server's configuration, by top-level key. */
  readonly server?: Readonly<Record<string, unknown>>;
  /** Plugins beside those of `npm start`. */
  readonly more?: readonly (readonly [plugin: Plugin, settings: unknown])[];
  /** Overrides of plugins' settings, by name. */
  readonly settings?: Readonly<Record<string, Readonly<Record<string, unknown>>>>;
}

/** The backends of the project. */
export type BackendName = "local-process" | "linux-namespaces" | "jail-freebsd";

/**
 * A server in this process, with every plugin as after `npm start`, and one backend. With `COPPICE_TEST_FOREIGN=1` its
 * clients reach another server of its fleet, which has no sandboxes, so that each request is passed on. With
 * `COPPICE_TEST_FLEET_OF_ONE=sqlite` or `=etcd` it is the only server of a fleet over such a store.
 */
export function startFullServer(options: FullServerOptions = {}): Promise<TestServer> {
  if (process.env["COPPICE_TEST_FOREIGN"] === "1") return startBehindForeign(options, startOneServer);
  const store = process.env["COPPICE_TEST_FLEET_OF_ONE"];
  return store === undefined ? startOneServer(options) : startFleetOfOne(store, options, startOneServer);
}

async function startOneServer({
  backend: backendName = "local-process",
  host,
  server = {},
  more = [],
  settings = {},
}: FullServerOptions): Promise<TestServer> {
  const settingsOf = (name: string, own: Readonly<Record<string, unknown>> = {}) => ({
    ...own,
    ...settings[name],
  });
  const directory = await mkdtemp(join(tmpdir(), "coppice-full-"));
  const ownHost = backendName === "jail-freebsd" && host === undefined ? await openFreebsdHost() : undefined;
  const remove = async () => {
    await ownHost?.[Symbol.asyncDispose]();
    await rm(directory, { recursive: true, force: true });
  };
  const backends: Readonly<Record<BackendName, readonly [plugin: Plugin, settings: object, python: string]>> =
    {
      "local-process": [localProcess, { node: process.execPath }, PYTHON],
      "linux-namespaces": [linuxNamespaces, { directory, python: PYTHON, node: process.execPath }, "python3"],
      "jail-freebsd": [jailFreebsd, { ...(host ?? ownHost)?.configuration }, PYTHON_INSIDE],
    };
  const [backend, backendSettings, python] = backends[backendName];
  let full: TestServer;
  try {
    full = await startTestServer({
      server,
      plugins: [
        [access, settingsOf("access", { apiKeys: [API_KEY] })],
        [sandboxApi, settingsOf("sandbox-api")],
        [templates, settingsOf("templates")],
        [envdCompat, settingsOf("envd-compat")],
        [commands, settingsOf("commands")],
        [events, settingsOf("events")],
        [files, settingsOf("files")],
        [
          jupyter,
          settingsOf("jupyter", { python, ...(TRANSPORT !== undefined && { transport: TRANSPORT }) }),
        ],
        [commandsV1, settingsOf("commands-v1")],
        [shellSessions, settingsOf("shell-sessions")],
        [legacyShims, settingsOf("legacy-shims")],
        [backend, settingsOf(backendName, { ...backendSettings })],
        ...more,
      ],
    });
  } catch (error) {
    await remove();
    throw error;
  }
  const stop = async () => {
    try {
      await full.stop();
    } finally {
      await remove();
    }
  };
  return { ...full, stop, [Symbol.asyncDispose]: stop };
}
