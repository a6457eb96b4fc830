import assert from "node:assert/strict";
import { before } from "node:test";
import type { Sandbox } from "e2b";
import type { TestServer } from "@coppice/core/testing";
import { type EnvdClient, type EnvdRequest, envdClient } from "../../harness/clients/envd-client.js";
import { openProcess, shellRequest } from "../../harness/clients/process-stream.js";

export const OCTETS = { "content-type": "application/octet-stream" };

export const query = (parameters: Readonly<Record<string, string>>): string =>
  `/files?${new URLSearchParams(parameters).toString()}`;

export const refusal = (status: number, code: string, message: string) => ({
  status,
  body: { code, message },
});

/** Requests about the files of a suite's sandbox. */
export function filesRequests(server: () => TestServer, sandbox: () => Sandbox) {
  let envd: EnvdClient;
  before(() => {
    const { sandboxId } = sandbox();
    const token = server().sandboxes.get(sandboxId).record.accessToken;
    envd = envdClient({ url: server().url, sandboxId, token });
  });

  const call = (method: string, message: unknown, headers?: Readonly<Record<string, string>>) =>
    envd.call(`filesystem.Filesystem/${method}`, message, headers);
  const get = (parameters: Readonly<Record<string, string>>, headers?: EnvdRequest["headers"]) =>
    envd.send("GET", query(parameters), headers && { headers });
  const post = (path: string, body: string | Uint8Array, headers: EnvdRequest["headers"] = OCTETS) =>
    envd.send("POST", path, { headers, body });
  const put = async (path: string, body: string | Uint8Array, headers = {}) => {
    const answer = await post(query({ path }), body, { ...OCTETS, ...headers });
    assert.equal(answer.status, 200, answer.text);
  };
  /**
   * Runs a script in the user's home.
   * @returns its output
   */
  const sh = async (script: string, headers = {}) => {
    const process = await openProcess(envd, shellRequest(script), { headers });
    const { stdout, stderr, end } = await process.rest();
    assert.equal((end as { status: string }).status, "exit status 0", `${script}: ${stderr}`);
    return stdout;
  };
  const stat = async (path: string) => (await call("Stat", { path })).body.entry;
  return { call, get, post, put, sh, stat, envd: () => envd };
}
