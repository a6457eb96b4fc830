import { startTestServer, type TestServer } from "@coppice/core/testing";
import commands from "@coppice/plugin-commands";
import envdCompat from "@coppice/plugin-envd-compat";
import files from "@coppice/plugin-files";
import jupyter from "@coppice/plugin-jupyter";
import localProcess from "@coppice/plugin-local-process";
import sandboxApi from "@coppice/plugin-sandbox-api";
import { API_KEY } from "./api-key.js";
import { PYTHON } from "./python.js";

export interface FullServerOptions {
  /** Laid over the server's configuration, key by key at the top level. */
  readonly server?: Readonly<Record<string, unknown>>;
  /** Laid over a plugin's settings, by its name. */
  readonly settings?: Readonly<Record<string, Readonly<Record<string, unknown>>>>;
}

/** A server in this process as `npm start` would have it: every plugin, sandboxes as local processes. */
export function startFullServer({ server = {}, settings = {} }: FullServerOptions = {}): Promise<TestServer> {
  const settingsOf = (name: string, own: Readonly<Record<string, unknown>> = {}) => ({
    ...own,
    ...settings[name],
  });
  return startTestServer({
    server,
    plugins: [
      [sandboxApi, settingsOf("sandbox-api", { apiKeys: [API_KEY] })],
      [envdCompat, settingsOf("envd-compat")],
      [commands, settingsOf("commands")],
      [files, settingsOf("files")],
      [jupyter, settingsOf("jupyter", { python: PYTHON })],
      [localProcess, settingsOf("local-process")],
    ],
  });
}
