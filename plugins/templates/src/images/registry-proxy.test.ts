import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, request as requestHttp } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { openTestRegistry, type TestRegistry, writeImageLayout } from "@coppice/core/testing";
import { missingPrograms } from "../testing/missing-programs.js";
import { templatesConfig } from "../templates-config.js";
import { ARCHITECTURE, HostPrograms } from "./host-programs.js";
import { ImagePuller } from "./image-puller.js";
import { loginOf } from "./registry-login.js";
import { RegistryProxy } from "./registry-proxy.js";

const REGISTRY = "registry.invalid:5000";
const ACCOUNT = `Basic ${Buffer.from("me:p@ss").toString("base64")}`;
const { signal } = new AbortController();

it("a proxy is used but for hosts that are private, or excepted", () => {
  const uses = (url: string, environment: NodeJS.ProcessEnv, proxy?: string): boolean =>
    new RegistryProxy({ proxy, private: ["10.0.0.1:5000"] }, environment).isFor(new URL(url));
  const environment = {
    HTTPS_PROXY: "proxy:3128",
    no_proxy: "ghcr.io, .lan,*.corp,10.0.0.7,a.com:444,[fd00::1]:5000",
  };
  for (const host of ["docker.io", "ghcr.io.com", "10.0.0.1", "a.com", "10.0.0.77"])
    assert.ok(uses(`https://${host}/v2/`, environment), host);
  for (const host of [
    "ghcr.io",
    "x.ghcr.io:5000",
    "a.lan",
    "b.a.corp",
    "10.0.0.7",
    "a.com:444",
    "10.0.0.1:5000",
    "[fd00::1]:5000",
  ])
    assert.ok(!uses(`https://${host}/v2/`, environment), host);
  assert.ok(!uses("http://docker.io/", environment), "there is none for plain HTTP");
  assert.ok(uses("http://docker.io/", environment, "http://other:3128"));
  assert.ok(!uses("https://docker.io/", environment, "none"));
  assert.ok(!uses("https://docker.io/", { HTTPS_PROXY: "http://proxy", NO_PROXY: "*" }));
  assert.throws(() => uses("https://docker.io/", { https_proxy: "socks5://me:secret@proxy" }), {
    message: "the variable HTTPS_PROXY of this server's environment is no address of an HTTP proxy",
  });
});

describe("pulling through a proxy", { skip: missingPrograms("skopeo") }, () => {
  const programs = new HostPrograms();
  const asked: string[] = [];
  let directory: string;
  let registry: TestRegistry;
  let proxy: string;
  const server = createServer((request, response) => {
    asked.push(`${request.method} ${request.url}`);
    if (request.headers["proxy-authorization"] !== ACCOUNT) return response.writeHead(407).end();
    const { pathname } = new URL(request.url ?? "");
    return request.pipe(
      requestHttp(`http://${registry.address}${pathname}`, { method: request.method }, (answer) => {
        response.writeHead(answer.statusCode ?? 500, answer.headers);
        answer.pipe(response);
      }),
    );
  }).on("connect", (request, socket) => {
    asked.push(`CONNECT ${request.url}`);
    socket.end("HTTP/1.1 403 Forbidden\r\n\r\n");
  });

  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-proxy-"));
    registry = await openTestRegistry();
    const layout = join(directory, "image");
    await writeImageLayout(layout, { layers: [[{ name: "one" }]], architecture: ARCHITECTURE });
    registry.add("tiny:1", layout);
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    proxy = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  });
  after(async () => {
    server.closeAllConnections();
    server.close();
    await registry[Symbol.asyncDispose]();
    await programs.close();
    await rm(directory, { recursive: true });
  });

  async function pull(reference: string, registries: object, environment: NodeJS.ProcessEnv = {}) {
    const puller = new ImagePuller({
      programs,
      settings: templatesConfig.parse({
        registries: { insecure: [REGISTRY, registry.address], ...registries },
      }),
      directory: () => join(directory, "pulls"),
      environment,
    });
    await puller.clear();
    using found = await puller.find({ reference, credentials: undefined }, signal);
    await using _image = await found.pull(() => undefined);
    return asked.splice(0);
  }

  it("asks it for everything, with its account, by the setting or the environment", async () => {
    const url = `http://me:p%40ss@${proxy}`;
    for (const requests of [
      await pull(`${REGISTRY}/tiny:1`, { proxy: url }),
      await pull(`${REGISTRY}/tiny:1`, {}, { http_proxy: url }),
    ]) {
      assert.equal(requests[0], `GET http://${REGISTRY}/v2/tiny/manifests/1`);
      assert.ok(
        requests.length >= 3 && requests.every((line) => line.includes(REGISTRY)),
        requests.join("\n"),
      );
    }
    assert.deepEqual(
      await pull(`${registry.address}/tiny:1`, { proxy: url, private: [registry.address] }),
      [],
    );
  });

  it("reaches no address through it that is known to be private", async () => {
    const url = `http://me:p%40ss@${proxy}`;
    for (const host of ["127.0.0.1:1", "localhost:1", "10.1.2.3", "[::1]:1"])
      await assert.rejects(pull(`${host}/tiny:1`, { proxy: url }), /has no public address/, host);
    assert.deepEqual(asked, []);
  });

  it("tells why it fails, and neither its address nor its account", async () => {
    const refused =
      /^BuildFailure: failed to pull image '.*': the proxy of this server answered 403 for 'secure.invalid'$/;
    await assert.rejects(pull("secure.invalid/tiny:1", { proxy: `http://me:secret@${proxy}` }), refused);
    assert.deepEqual(asked.splice(0), ["CONNECT secure.invalid:443"]);
    const gone = /: the proxy of this server cannot be reached \(ECONNREFUSED\)$/;
    await assert.rejects(pull("secure.invalid/tiny:1", { proxy: "http://me:secret@127.0.0.1:1" }), gone);
    await assert.rejects(pull(`${REGISTRY}/tiny:1`, { proxy: "http://me:secret@127.0.0.1:1" }), gone);
    await assert.rejects(
      pull(`${REGISTRY}/tiny:1`, { proxy: `http://${proxy}` }),
      /: its registry answered 407$/,
    );
  });

  it("asks AWS for a token through it", async () => {
    asked.length = 0;
    const credentials = {
      type: "aws",
      awsAccessKeyId: "a",
      awsSecretAccessKey: "b",
      awsRegion: "eu-west-1",
    } as const;
    const through = new RegistryProxy({ proxy: `http://${proxy}`, private: [] }, {});
    await assert.rejects(loginOf(credentials, { proxy: through, signal }), /does not answer/);
    assert.deepEqual(asked, ["CONNECT api.ecr.eu-west-1.amazonaws.com:443"]);
  });
});
