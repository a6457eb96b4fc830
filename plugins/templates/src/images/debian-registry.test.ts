import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { promisify } from "node:util";
import { openDockerRegistry, writeImageLayout } from "@coppice/core/testing";
import { templatesConfig } from "../templates-config.js";
import { missingPrograms } from "../testing/missing-programs.js";
import { HostPrograms } from "./host-programs.js";
import { ImagePuller } from "./image-puller.js";

const run = promisify(execFile);
const PASSWORD = "a very secret password";
/** Of `PASSWORD`, by bcrypt. */
const HTPASSWD = "me:$2b$04$7xqs93I0/F36dsnko4SVD.lplKc7XAFG.Lk6tjKErMgLfdTvW0nve\n";
const TYPES = "application/vnd.oci.image";

it(
  "the registry of Docker gives the image of this machine's platform to its account",
  { skip: missingPrograms("skopeo", "docker-registry"), timeout: 60_000 },
  async (t) => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-registry-"));
    const programs = new HostPrograms();
    const registry = await openDockerRegistry({ htpasswd: HTPASSWD });
    const { address } = registry;
    t.after(async () => {
      await registry[Symbol.asyncDispose]();
      await programs.close();
      await rm(directory, { recursive: true });
    });
    const authorization = `Basic ${Buffer.from(`me:${PASSWORD}`).toString("base64")}`;
    const ask = (path: string, init: RequestInit = {}): Promise<Response> => {
      const headers = new Headers(init.headers);
      headers.set("authorization", authorization);
      return fetch(`http://${address}/v2/${path}`, { ...init, headers });
    };
    const manifests: object[] = [];
    for (const architecture of ["s390x", process.arch === "x64" ? "amd64" : process.arch]) {
      const layout = join(directory, architecture);
      const config = { Env: [`ARCHITECTURE=${architecture}`] };
      await writeImageLayout(layout, { layers: [[{ name: "one" }]], architecture, config });
      const to = `docker://${address}/tiny:${architecture}`;
      const words = [
        "--insecure-policy",
        "copy",
        "--dest-creds",
        `me:${PASSWORD}`,
        "--dest-tls-verify=false",
      ];
      await run("skopeo", [...words, `oci:${layout}:image`, to]);
      const found = await ask(`tiny/manifests/${architecture}`, {
        headers: { accept: `${TYPES}.manifest.v1+json` },
      });
      manifests.push({
        mediaType: `${TYPES}.manifest.v1+json`,
        digest: found.headers.get("docker-content-digest"),
        size: (await found.arrayBuffer()).byteLength,
        platform: { os: "linux", architecture },
      });
    }
    const index = JSON.stringify({ schemaVersion: 2, mediaType: `${TYPES}.index.v1+json`, manifests });
    const put = await ask("tiny/manifests/latest", {
      method: "PUT",
      headers: { "content-type": `${TYPES}.index.v1+json` },
      body: index,
    });
    assert.equal(put.status, 201);

    const puller = new ImagePuller({
      programs,
      settings: templatesConfig.parse({ registries: { private: [address], insecure: [address] } }),
      directory: () => join(directory, "pulls"),
    });
    await puller.clear();
    const { signal } = new AbortController();
    const credentials = { type: "registry", username: "me", password: PASSWORD } as const;
    const wanted = { reference: `${address}/tiny`, credentials };
    using found = await puller.find(wanted, signal);
    assert.equal(found.digest, put.headers.get("docker-content-digest"));
    await using image = await found.pull(() => undefined);
    assert.deepEqual(image.environment, { ARCHITECTURE: process.arch === "x64" ? "amd64" : process.arch });
    await assert.rejects(puller.find({ ...wanted, credentials: undefined }, signal), /: access denied to '/);
    const wrong = { ...credentials, password: "another" };
    await assert.rejects(puller.find({ ...wanted, credentials: wrong }, signal), /: access denied to '/);
    await assert.rejects(
      puller.find({ ...wanted, reference: `${address}/tiny:2` }, signal),
      /: image '.*' not found: /,
    );
    await assert.rejects(
      puller.find({ ...wanted, reference: `${address}/other` }, signal),
      /: image '.*' not found: /,
    );
  },
);
