import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdir, mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { createServer, type IncomingMessage, request, type RequestListener } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { severalTenants } from "@coppice/core";
import { type DockerRegistry, openDockerRegistry, tarArchive } from "@coppice/core/testing";
import type { Transfer } from "../model/builder.js";
import { templatesConfig } from "../templates-config.js";
import { missingPrograms } from "../testing/missing-programs.js";
import { HostPrograms } from "./host-programs.js";
import { ImagePusher, type PushedFiles, type PushTarget } from "./image-pusher.js";

const PASSWORD = "a very secret password";
/** Of `PASSWORD`, by bcrypt. */
const HTPASSWD = "me:$2b$04$7xqs93I0/F36dsnko4SVD.lplKc7XAFG.Lk6tjKErMgLfdTvW0nve";
const CREDENTIALS = { type: "registry", username: "me", password: PASSWORD } as const;
const MANIFEST = "application/vnd.oci.image.manifest.v1+json";
const BODY = Buffer.alloc(3 * 2 ** 20, "some text ");

const WITHOUT = missingPrograms("skopeo", "docker-registry");

describe("a push", { skip: WITHOUT, timeout: 60_000 }, () => {
  let registry: DockerRegistry;
  let directory: string;
  let programs: HostPrograms;
  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-pushes-"));
    await mkdir(join(directory, "layouts"));
    programs = new HostPrograms();
    registry = await openDockerRegistry({ htpasswd: HTPASSWD });
  });
  after(async () => {
    await registry[Symbol.asyncDispose]();
    await programs.close();
    await rm(directory, { recursive: true });
  });

  const files = (body: Uint8Array = BODY): PushedFiles => {
    const archive = tarArchive([{ name: "file", body }]);
    return {
      async *archive() {
        for (let at = 0; at < archive.length; at += 65_536) yield archive.subarray(at, at + 65_536);
      },
      bytes: archive.length,
      settings: { Env: ["A=b"], Labels: { one: "two" } },
    };
  };

  async function push(
    target: Partial<PushTarget>,
    {
      wanted = files(),
      signal = new AbortController().signal,
      registries = {},
      images = {},
    }: {
      readonly wanted?: PushedFiles;
      readonly signal?: AbortSignal;
      readonly registries?: object;
      readonly images?: object;
    } = {},
  ) {
    const { address } = registry;
    const settings = templatesConfig.parse({
      registries: { private: [address], insecure: [address], ...registries },
      images,
    });
    const pusher = new ImagePusher({ programs, settings, directory: () => join(directory, "layouts") });
    const reports: Transfer[] = [];
    const place = pusher.target({ reference: `${address}/team/one:v1`, credentials: CREDENTIALS, ...target });
    try {
      const report = (each: Transfer): void => void reports.push(each);
      return { digest: await place.push(wanted, { tenant: "t", report, signal }), reports };
    } finally {
      assert.deepEqual(await readdir(join(directory, "layouts")), []);
    }
  }

  const manifestOf = async (name: string) => {
    const answer = await fetch(`http://${registry.address}/v2/${name.replace(":", "/manifests/")}`, {
      headers: { authorization: `Basic ${btoa(`me:${PASSWORD}`)}`, accept: MANIFEST },
    });
    const layers = ((await answer.json()) as { layers: { mediaType: string; size: number }[] }).layers;
    return { digest: answer.headers.get("docker-content-digest"), layers };
  };

  it("of one of several tenants leaves a turn to the others", async () => {
    const { address } = registry;
    const registries = { private: [address], insecure: [address] };
    const settings = templatesConfig.parse({ registries, images: { maxConcurrentPulls: 2 } });
    const pusher = new ImagePusher({
      programs,
      settings,
      tenants: severalTenants(),
      directory: () => join(directory, "layouts"),
    });
    const held = Promise.withResolvers<void>();
    const slow: PushedFiles = {
      ...files(),
      async *archive() {
        await held.promise;
        yield* files().archive(new AbortController().signal);
      },
    };
    const of = (tenant: string, wanted: PushedFiles): Promise<string> =>
      pusher
        .target({ reference: `${address}/${tenant}/one:v1`, credentials: CREDENTIALS })
        .push(wanted, { tenant, report: () => undefined, signal: AbortSignal.timeout(30_000) });
    const slowly = [of("evil", slow), of("evil", slow), of("evil", slow)];
    assert.match(await of("acme", files()), /^sha256:/);
    held.resolve();
    await Promise.all(slowly);
  });

  it("puts one compressed layer into the registry, whose digest is known, and tells how far it has come", async () => {
    const { digest, reports } = await push({});
    const found = await manifestOf("team/one:v1");
    assert.equal(found.digest, digest);
    assert.deepEqual(
      found.layers.map(({ mediaType }) => mediaType),
      ["application/vnd.oci.image.layer.v1.tar+gzip"],
    );
    assert.deepEqual(new Set(reports.map(({ phase }) => phase)), new Set(["packing", "pushing"]));
    const size = found.layers[0]?.size;
    assert.deepEqual(reports.at(-1), { phase: "pushing", done: size, total: size });
  });

  it("goes through a proxy", async () => {
    const proxy = createServer(({ method, url = "", headers }, response) => {
      const { pathname, search } = new URL(url);
      const forward = request(
        `http://${registry.address}${pathname}${search}`,
        { method, headers },
        (answer) => answer.pipe(response.writeHead(answer.statusCode ?? 500, answer.headers)),
      );
      response.req.pipe(forward);
    });
    proxy.listen(0, "127.0.0.1");
    await once(proxy, "listening");
    const { port } = proxy.address() as AddressInfo;
    const registries = { insecure: ["registry.invalid:5000"], proxy: `http://127.0.0.1:${port}` };
    const { digest } = await push({ reference: "registry.invalid:5000/team/proxied:v1" }, { registries });
    assert.equal((await manifestOf("team/proxied:v1")).digest, digest);
    proxy.closeAllConnections();
    proxy.close();
  });

  it("of equal files has the same digest, and sends no layer again", async () => {
    const first = await push({ reference: `${registry.address}/team/two` });
    const second = await push({ reference: `${registry.address}/team/two:other` });
    assert.equal(first.digest, second.digest);
    assert.equal((await manifestOf("team/two:latest")).digest, first.digest);
    const sent = second.reports.filter(({ phase }) => phase === "pushing").at(-1)?.done ?? 0;
    assert.ok(sent < 10_000, `it sent ${sent} bytes`);
    const other = await push(
      { reference: `${registry.address}/team/two` },
      { wanted: files(Buffer.from("x")) },
    );
    assert.notEqual(other.digest, first.digest);
  });

  for (const [what, target, reason] of [
    ["without an account", { credentials: undefined }, /failed to push image '.*': access denied/],
    ["with a wrong password", { credentials: { ...CREDENTIALS, password: "x" } }, /access denied/],
    ["to a digest", { reference: `docker.io/a@sha256:${"0".repeat(64)}` }, /names a digest/],
    ["to no reference", { reference: "A B" }, /invalid image reference/],
  ] as const) {
    it(`${what} is refused`, async () => {
      await assert.rejects(push(target), (error: Error) => reason.test(error.message));
    });
  }

  it("goes to no address that the operator has not named, whatever a registry says", async () => {
    await assert.rejects(push({}, { registries: { private: [] } }), /has no public address/);
    await assert.rejects(push({}, { registries: { allowed: ["docker.io"] } }), /does not pull from/);
    let reached = 0;
    await using inner = await serving(() => void (reached += 1));
    await using evil = await serving((request, response) => {
      request.resume();
      if (request.method === "HEAD") response.writeHead(404).end();
      else response.writeHead(202, { location: `http://${inner.address}/upload?a=b` }).end();
    });
    const registries = { private: [evil.address], insecure: [evil.address] };
    await assert.rejects(push({ reference: `${evil.address}/a` }, { registries }), /has no public address/);
    assert.equal(reached, 0);
  });

  it("tells what a registry says, and ends with its signal or when the files cannot be read", async () => {
    let refusing: (request: IncomingMessage) => number = () => 507;
    await using full = await serving((request, response) => {
      request.resume();
      if (request.method === "HEAD") return void response.writeHead(404).end();
      const status = refusing(request);
      if (status === 0) return;
      if (status === 202) return void response.writeHead(202, { location: "/v2/a/blobs/uploads/1" }).end();
      response
        .writeHead(status)
        .end(JSON.stringify({ errors: [{ message: "the disk\u001B\u0007is full" }] }));
    });
    const registries = { private: [full.address], insecure: [full.address] };
    const reference = `${full.address}/a`;
    await assert.rejects(push({ reference }, { registries }), /it answered 507: the disk is full$/);
    const ending = new AbortController();
    refusing = ({ method }) => {
      if (method === "POST") return 202;
      if (method === "DELETE") return 204;
      ending.abort(new Error("the client has gone"));
      return 0;
    };
    await assert.rejects(push({ reference }, { registries, signal: ending.signal }), /the client has gone/);
  });

  for (const [what, failure, code, message] of [
    [
      "a full disk",
      Object.assign(new Error("ENOSPC: open '/srv'"), { code: "ENOSPC", path: "/srv" }),
      "unavailable",
      "the server has no room on its disk",
    ],
    ["a failure of its backend", new Error("mount /srv"), "internal", "the files cannot be packed"],
  ] as const) {
    it(`names no path of the host after ${what}`, async () => {
      const wanted: PushedFiles = {
        ...files(),
        // oxlint-disable-next-line require-yield
        async *archive() {
          throw failure;
        },
      };
      await assert.rejects(push({}, { wanted }), { code, message });
    });
  }

  it("shows no path of the host where skopeo names one", async () => {
    const skopeo = join(directory, "skopeo");
    const says = `time=now level=fatal msg="writing blob: write $PWD/image/x: no space left on device"`;
    await writeFile(skopeo, `#!/bin/sh\ncat >&2 <<END\n${says}\nEND\nexit 1\n`, { mode: 0o755 });
    await assert.rejects(push({}, { images: { skopeo } }), {
      message: /^failed to push image '.*': writing blob: write image\/x: no space left on device$/,
    });
  });

  it("refuses more than an image may unpack to, as holes of files are", async () => {
    const images = { maxSize: "1MiB", maxEntries: 1 };
    await assert.rejects(push({}, { images }), { message: /^the files have more than 1048576 bytes/ });
  });
});

async function serving(listener: RequestListener) {
  const server = createServer(listener).listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    address: `127.0.0.1:${(server.address() as AddressInfo).port}`,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
      await once(server, "close");
    },
  };
}
