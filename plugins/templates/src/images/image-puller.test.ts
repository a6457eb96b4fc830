import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { mkdtemp, readdir, readFile, rm, stat } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { severalTenants, type Tenants } from "@coppice/core";
import {
  openTestRegistry,
  type TestRegistry,
  type TestRegistryOptions,
  writeImageLayout,
} from "@coppice/core/testing";
import type { RegistryCredentials } from "../model/build-request.js";
import { templatesConfig } from "../templates-config.js";
import { missingPrograms } from "../testing/missing-programs.js";
import { HostPrograms } from "./host-programs.js";
import { ImagePuller } from "./image-puller.js";

const ARCHITECTURE = process.arch === "x64" ? "amd64" : process.arch;
const signal = new AbortController().signal;

describe("pulling an image", { skip: missingPrograms("skopeo") }, () => {
  const programs = new HostPrograms();
  let directory: string;
  let layout: string;

  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-puller-"));
    layout = join(directory, "image");
    await writeImageLayout(layout, {
      layers: [[{ name: "one", body: "1".repeat(100_000) }], [{ name: "two", body: randomBytes(200_000) }]],
      config: {
        Env: ["PATH=/bin:/opt/bin", "GREETING=Hello, World!", "EMPTY=", "broken", "A=b=c"],
        User: "1000",
      },
      architecture: ARCHITECTURE,
    });
  });

  after(async () => {
    await programs.close();
    await rm(directory, { recursive: true });
  });

  /** A puller that may reach a registry, and its directory. */
  async function pullerOf({
    tenants,
    ...settings
  }: {
    readonly registries?: object;
    readonly images?: object;
    readonly tenants?: Tenants;
  }): Promise<ImagePuller & { readonly left: () => Promise<readonly string[]> }> {
    const own = await mkdtemp(join(directory, "pulls-"));
    const puller = new ImagePuller({
      programs,
      settings: templatesConfig.parse(settings),
      ...(tenants && { tenants }),
      directory: () => own,
    });
    await puller.clear();
    return Object.assign(puller, { left: () => readdir(own) });
  }

  async function open(options?: TestRegistryOptions) {
    const registry = await openTestRegistry(options);
    registry.add("tiny:1", layout);
    const reach = { private: [registry.address], insecure: [registry.address] };
    return { registry, reach, image: `${registry.address}/tiny:1` };
  }

  /** Pulls to the end, and removes the layout. @returns the lines of the log */
  async function pull(puller: ImagePuller, reference: string, credentials?: RegistryCredentials) {
    const lines: string[] = [];
    using found = await puller.find({ reference, credentials }, signal);
    await using image = await found.pull((line) => lines.push(line));
    assert.ok((await stat(join(image.layout, "oci-layout"))).isFile());
    return { lines, digest: found.digest, environment: image.environment };
  }

  it("writes a layout with its files, and tells of its layers and variables", async () => {
    const { registry, reach, image } = await open();
    await using _ = registry;
    const puller = await pullerOf({ registries: reach });
    const { lines, digest, environment } = await pull(puller, image);
    const manifest = registry.requests.filter((line) => line.includes("/manifests/"));
    assert.deepEqual(manifest, ["GET /v2/tiny/manifests/1"], "the manifest is fetched once");
    assert.match(digest, /^sha256:[0-9a-f]{64}$/);
    assert.deepEqual(environment, { PATH: "/bin:/opt/bin", GREETING: "Hello, World!", A: "b=c" });
    assert.equal(lines.length, 1);
    assert.match(lines[0] ?? "", /^Pulling sha256:[0-9a-f]{12} \(\d+\.\d MiB\)$/);
    assert.deepEqual(await puller.left(), []);
    assert.equal((await pull(puller, `${image}@${digest}`)).digest, digest);
  });

  for (const scheme of ["basic", "bearer"] as const) {
    it(`gives an account to a registry that asks for it (${scheme})`, async () => {
      const login = { username: "me", password: "a very secret password", scheme };
      const { registry, reach, image } = await open({ login });
      await using _ = registry;
      const puller = await pullerOf({ registries: reach });
      const account = { type: "registry", username: "me", password: login.password } as const;
      assert.ok((await pull(puller, image, account)).digest);
      const denied = `BuildFailure: access denied to '${image}': authentication required or insufficient permissions`;
      for (const credentials of [undefined, { ...account, password: "another" }]) {
        await assert.rejects(pull(puller, image, credentials), (error: Error) => String(error) === denied);
      }
    });
  }

  const REFUSALS: readonly {
    readonly name: string;
    readonly answer: number;
    readonly says: RegExp;
  }[] = [
    {
      name: "is not there",
      answer: 404,
      says: /^image '.*' not found: the image or tag does not exist in the registry$/,
    },
    { name: "is forbidden", answer: 403, says: /^access denied to '.*': no permission to pull this image$/ },
    {
      name: "is asked for too often",
      answer: 429,
      says: /^failed to pull image '.*': its registry limits requests/,
    },
    { name: "fails", answer: 500, says: /^failed to pull image '.*': its registry answered 500$/ },
  ];
  for (const { name, answer, says } of REFUSALS) {
    it(`tells that an image ${name}`, async () => {
      const { registry, reach, image } = await open({
        answer: (_request, response) => response.writeHead(answer).end("{}").writableEnded,
      });
      await using _ = registry;
      const puller = await pullerOf({ registries: reach });
      await assert.rejects(pull(puller, image), { name: "BuildFailure", message: says, step: "base" });
    });
  }

  it("tells a registry that cannot give tokens from one that denies them", async () => {
    const { registry, reach, image } = await open({
      answer: ({ url = "" }, response) =>
        url.startsWith("/token")
          ? response.writeHead(503).end().writableEnded
          : response
              .writeHead(401, { "www-authenticate": `Bearer realm="http://${registry.address}/token"` })
              .end().writableEnded,
    });
    await using _ = registry;
    const puller = await pullerOf({ registries: reach });
    await assert.rejects(
      pull(puller, image),
      /: failed to pull image '.*': '127\.0\.0\.1:\d+' answered 503$/,
    );
  });

  it("of one of several tenants leaves a turn to the others", { timeout: 60_000 }, async () => {
    const held = Promise.withResolvers<void>();
    const { registry, reach, image } = await open({
      answer({ url = "" }, response) {
        if (!url.startsWith("/v2/slow/blobs/")) return false;
        void held.promise.then(() => response.writeHead(404).end());
        return true;
      },
    });
    await using _ = registry;
    registry.add("slow:1", layout);
    const images = { maxConcurrentPulls: 2 };
    const puller = await pullerOf({ registries: reach, images, tenants: severalTenants() });
    const of = async (reference: string, tenant: string): Promise<string> => {
      using found = await puller.find({ reference, credentials: undefined, tenant }, signal);
      await using _pulled = await found.pull(() => undefined);
      return found.digest;
    };
    const slowly = [1, 2, 3].map(() => of(image.replace("tiny", "slow"), "evil").catch(String));
    assert.match(await of(image, "acme"), /^sha256:/);
    held.resolve();
    for (const end of await Promise.all(slowly)) assert.match(end, /answered 404/);
  });

  it("fails when a registry says nothing any more", async () => {
    for (const part of ["manifests", "blobs"]) {
      const { registry, reach, image } = await open({
        answer: ({ url = "" }, response) =>
          url.includes(part) && (part === "manifests" || response.writeHead(200).write("x")),
      });
      await using _ = registry;
      const puller = await pullerOf({ registries: reach, images: { idleTimeout: "200ms" } });
      await assert.rejects(pull(puller, image), /: '127\.0\.0\.1:\d+' has been silent for too long$/, part);
      assert.deepEqual(await puller.left(), []);
    }
  });

  it("fails when a registry sends too little to be waited for, and is never silent", async () => {
    for (const part of ["manifests", "blobs"]) {
      const ending = new AbortController();
      const { registry, reach, image } = await open({
        answer({ url = "" }, response) {
          if (!url.includes(part)) return false;
          const drip = setInterval(() => response.write(" "), 20);
          ending.signal.addEventListener("abort", () => clearInterval(drip));
          return true;
        },
      });
      await using _ = registry;
      const puller = await pullerOf({ registries: reach, images: { idleTimeout: "200ms" } });
      await assert.rejects(pull(puller, image), /: '127\.0\.0\.1:\d+' has been slow for too long$/, part);
      ending.abort();
      assert.deepEqual(await puller.left(), []);
    }
  });

  it("fails when a registry leaves HTTP", async () => {
    const { registry, reach, image } = await open({
      answer: ({ socket }) =>
        socket.end("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
          .writableEnded,
    });
    await using _ = registry;
    const puller = await pullerOf({ registries: reach });
    await assert.rejects(pull(puller, image), /: '127\.0\.0\.1:\d+' does not speak HTTP$/);
  });

  it("refuses an image over the limits before its layers are fetched", async () => {
    const { registry, reach, image } = await open();
    await using _ = registry;
    const small = await pullerOf({ registries: reach, images: { maxDownload: "64KiB" } });
    await assert.rejects(
      pull(small, image),
      /^BuildFailure: failed to pull image '.*': its layers have more than 65536 bytes$/,
    );
    const flat = await pullerOf({ registries: reach, images: { maxLayers: 1 } });
    await assert.rejects(pull(flat, image), /: it has more than 1 layers$/);
    assert.deepEqual(
      registry.requests.filter((line) => line.includes("/blobs/")),
      [],
    );
    assert.deepEqual([await small.left(), await flat.left()], [[], []]);
  });

  it("refuses a manifest or a configuration that holds up the server while it is parsed", async () => {
    const many = Array.from({ length: 6_000 }, () => "");
    const long = "x".repeat(600_000);
    const cases = [
      [{ config: { Env: many } }, /: it has more than 5000 values$/],
      [{ config: { Labels: { long } } }, /: the answer has more than 524288 bytes$/],
      [{ change: (manifest: object) => ({ ...manifest, many }) }, /: it has more than 5000 values$/],
      [{ change: (manifest: object) => ({ ...manifest, long }) }, /: the answer has more than 524288 bytes$/],
    ] as const;
    for (const [at, [with_, says]] of cases.entries()) {
      const own = join(directory, `metadata-${at}`);
      const layers = [[{ name: "one" }]];
      await writeImageLayout(own, { layers, architecture: ARCHITECTURE, ...with_ });
      const { registry, reach } = await open();
      await using _ = registry;
      registry.add("metadata:1", own);
      const puller = await pullerOf({ registries: reach });
      await assert.rejects(pull(puller, `${registry.address}/metadata:1`), says);
      assert.deepEqual(await puller.left(), []);
    }
  });

  it("refuses contents that are not what their digest says, or more than they claim", async () => {
    const manifest = JSON.parse(await readFile(join(layout, "index.json"), "utf8")).manifests[0] as {
      digest: string;
    };
    const bodies = {
      manifest: (path: string) => path.includes("manifests") && "{}",
      layer: (path: string) => path.includes("blobs") && "x".repeat(1000),
    };
    for (const [kind, bodyOf] of Object.entries(bodies)) {
      const { registry, reach, image } = await open({
        answer: (request, response) => {
          const body = bodyOf(request.url ?? "");
          return body !== false && response.end(body).writableEnded;
        },
      });
      await using _ = registry;
      const puller = await pullerOf({ registries: reach });
      const wanted = `${image}@${manifest.digest}`;
      await assert.rejects(pull(puller, wanted), /^BuildFailure: failed to pull image '[^]*sha256:/, kind);
      assert.deepEqual(await puller.left(), []);
    }
    const { registry, reach, image } = await open({
      answer: ({ url = "" }, response) => {
        if (!url.includes("blobs")) return false;
        const send = (): void =>
          void response.write(Buffer.alloc(1024 * 1024), () => response.closed || send());
        send();
        return true;
      },
    });
    await using _ = registry;
    const puller = await pullerOf({ registries: reach, images: { maxDownload: "8MiB" } });
    await assert.rejects(pull(puller, image), /: its layers have more than 8388608 bytes$/);
  });

  it("fetches nothing from addresses that a manifest names", async () => {
    const asked: string[] = [];
    const other = createServer(({ url = "" }, response) => void (asked.push(url), response.end()));
    await new Promise<void>((resolve) => void other.listen(0, "127.0.0.1", resolve));
    const { port } = other.address() as { readonly port: number };
    for (const key of ["urls", "URLS", "urlſ"]) {
      const own = join(directory, `elsewhere-${key}`);
      await writeImageLayout(own, {
        layers: [[{ name: "one" }]],
        architecture: ARCHITECTURE,
        change: ({ layers, ...manifest }) => ({
          ...manifest,
          layers: layers.map((layer) => ({
            ...layer,
            mediaType: "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
            [key]: [`http://127.0.0.1:${port}/secret`],
          })),
        }),
      });
      const { registry, reach } = await open();
      await using _ = registry;
      registry.add("elsewhere:1", own);
      const puller = await pullerOf({ registries: reach });
      const pulled = pull(puller, `${registry.address}/elsewhere:1`);
      await assert.rejects(pulled, /: it has layers outside of its registry$/, key);
    }
    const escaped = String.raw`{"layers":[{"size":1,"\u0055r\u006Cs" : ["http://127.0.0.1:${port}/secret"]}]}`;
    const { registry, reach, image } = await open({
      answer: ({ url = "" }, response) => url.includes("manifests") && response.end(escaped).writableEnded,
    });
    await using _ = registry;
    const escaping = pull(await pullerOf({ registries: reach }), image);
    await assert.rejects(escaping, /: it has layers outside of its registry$/);
    other.close();
    assert.deepEqual(asked, []);
  });

  it("reaches no private address, by its name, by a redirect or by a realm", async () => {
    const inner = await open();
    await using _ = inner.registry;
    const closed = await pullerOf({});
    for (const reference of [
      inner.image,
      `localhost:${inner.registry.address.split(":")[1]}/tiny:1`,
      "no-such-host.invalid/a",
    ]) {
      await assert.rejects(
        pull(closed, reference),
        /: '.*' has no public address that this server can find, and is not in .*registries\.private/,
      );
    }
    const aimed: readonly ((to: TestRegistry) => Record<string, string>)[] = [
      ({ address }) => ({ location: `http://${address}/v2/tiny/manifests/1` }),
      ({ address }) => ({ "www-authenticate": `Bearer realm="http://${address}/token"` }),
    ];
    for (const [at, headersTo] of aimed.entries()) {
      const outer = await open({
        answer: (_request, response) =>
          response.writeHead(at === 0 ? 302 : 401, headersTo(inner.registry)).end().writableEnded,
      });
      await using _outer = outer.registry;
      const puller = await pullerOf({ registries: outer.reach });
      await assert.rejects(pull(puller, outer.image), /: '127.0.0.1:\d+' has no public address/);
    }
    assert.deepEqual(inner.registry.requests, []);
  });

  it("follows redirects, without the account, and not without an end", async () => {
    const seen: (string | undefined)[] = [];
    const { registry, reach, image } = await open({
      answer: (request, response) => {
        if (request.url?.startsWith("/elsewhere") === true) {
          seen.push(request.headers.authorization);
          return response.writeHead(302, { location: "/v2/tiny/manifests/1" }).end().writableEnded;
        }
        return false;
      },
    });
    await using _ = registry;
    const front = await openTestRegistry({
      answer: (request, response) => {
        const { authorization } = request.headers;
        if (authorization === undefined) response.writeHead(401, { "www-authenticate": "Basic" }).end();
        else
          response
            .writeHead(302, {
              location: `http://${registry.address}${request.url?.includes("blobs") ? request.url : "/elsewhere"}`,
            })
            .end();
        return true;
      },
    });
    await using _front = front;
    const both = [...reach.private, front.address];
    const puller = await pullerOf({ registries: { private: both, insecure: both } });
    const account = { type: "registry", username: "me", password: "secret" } as const;
    assert.ok((await pull(puller, `${front.address}/tiny:1`, account)).digest);
    assert.deepEqual(seen, [undefined]);
    const endless = await open({
      answer: (request, response) =>
        response.writeHead(302, { location: `${request.url}x` }).end().writableEnded,
    });
    await using _endless = endless.registry;
    const other = await pullerOf({ registries: endless.reach });
    await assert.rejects(pull(other, endless.image), /redirects without an end$/);
    assert.ok(image);
  });

  it("gives the account to no realm that the target of a redirect names", async () => {
    const seen: (string | undefined)[] = [];
    const other = await open({
      answer: (request, response) => {
        seen.push(request.headers.authorization);
        const realm = `Bearer realm="http://${other.registry.address}/token"`;
        return response.writeHead(401, { "www-authenticate": realm }).end().writableEnded;
      },
    });
    await using _ = other.registry;
    const front = await open({
      answer: (request, response) =>
        response.writeHead(302, { location: `http://${other.registry.address}${request.url}` }).end()
          .writableEnded,
    });
    await using _front = front.registry;
    const both = [...other.reach.private, ...front.reach.private];
    const puller = await pullerOf({ registries: { private: both, insecure: both } });
    const account = { type: "registry", username: "me", password: "secret" } as const;
    await assert.rejects(pull(puller, front.image, account), /access denied to '/);
    assert.deepEqual(seen, [undefined]);
  });

  it("asks a mirror in place of a registry, except with an account", async () => {
    const { registry } = await open();
    await using _ = registry;
    registry.add("hub/library/tiny:1", layout);
    const registries = { mirrors: { "docker.io": `${registry.address}/hub` }, insecure: [registry.address] };
    const puller = await pullerOf({ registries });
    assert.ok((await pull(puller, "tiny:1")).digest);
    const only = await pullerOf({ registries: { ...registries, allowed: ["docker.io"] } });
    assert.ok((await pull(only, "tiny:1")).digest);
    await assert.rejects(pull(only, "quay.io/tiny:1"), /: this server does not pull from 'quay.io'$/);
  });

  it("refuses an image of another architecture", async () => {
    const own = join(directory, "other-architecture");
    await writeImageLayout(own, { layers: [[{ name: "one" }]], architecture: "s390x" });
    const { registry, reach } = await open();
    await using _ = registry;
    registry.add("other:1", own);
    const puller = await pullerOf({ registries: reach });
    const pulled = pull(puller, `${registry.address}/other:1`);
    await assert.rejects(pulled, {
      message: new RegExp(`: it is for s390x, and this server for ${ARCHITECTURE}$`),
    });
    assert.deepEqual(await puller.left(), []);
  });

  it("ends skopeo and leaves no file when it is given up", async () => {
    const { registry, reach, image } = await open({
      answer: ({ url = "" }, response) => url.includes("blobs") && response.writeHead(200).write("x"),
    });
    await using _ = registry;
    const puller = await pullerOf({ registries: reach });
    const aborting = new AbortController();
    using found = await puller.find({ reference: image, credentials: undefined }, aborting.signal);
    const pulled = found.pull(() => undefined);
    const isPulling = () => registry.requests.some((line) => line.includes("blobs"));
    for (let tries = 0; tries < 500 && !isPulling(); tries += 1) await delay(10);
    assert.equal((await puller.left()).length, 1);
    aborting.abort(new Error("given up"));
    await assert.rejects(pulled, /^Error: given up$/);
    assert.deepEqual(await puller.left(), []);
  });

  it("names skopeo where it is missing", async () => {
    const { registry, reach, image } = await open();
    await using _ = registry;
    const puller = await pullerOf({ registries: reach, images: { skopeo: "no-such-skopeo" } });
    await assert.rejects(
      pull(puller, image),
      /^BuildFailure: this server cannot copy images: it has no skopeo/,
    );
  });
});
