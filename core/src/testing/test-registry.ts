import { once } from "node:events";
import { createReadStream } from "node:fs";
import { readFile, stat } from "node:fs/promises";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";

/** Settings of a registry that serves image layouts. */
export interface TestRegistryOptions {
  /** Account without which nothing is given out. */
  readonly login?: {
    readonly username: string;
    readonly password: string;
    /** `bearer`: for the account there is a token, and for the token there are images. */
    readonly scheme: "basic" | "bearer";
  };
  /** Answers a request in place of the registry: returns true when it did. */
  readonly answer?: (request: IncomingMessage, response: ServerResponse) => boolean;
}

/** A registry of images on loopback, in plain HTTP, that gives out image layouts. */
export interface TestRegistry extends AsyncDisposable {
  /** `127.0.0.1:<port>` */
  readonly address: string;
  /** `<method> <path>` of every request, in order. */
  readonly requests: readonly string[];
  /** Gives out an image layout as `name:tag`, in place of another one of that name. */
  add(image: string, layout: string): void;
}

const TOKEN = "a-token-of-the-test-registry";
const PATH = /^\/v2\/(.+)\/(manifests|blobs)\/([^/]+)$/;

interface Index {
  readonly manifests: readonly { readonly digest: string; readonly mediaType: string }[];
}

/** Starts a registry in this process, which serves image layouts that tests add. */
export async function openTestRegistry({ login, answer }: TestRegistryOptions = {}): Promise<TestRegistry> {
  const layouts = new Map<string, string>();
  const requests: string[] = [];
  const server = createServer((request, response) => {
    requests.push(`${request.method} ${request.url}`);
    if (answer?.(request, response) === true) return;
    void serve(request, response).catch(() => {
      if (response.headersSent) response.destroy();
      else response.writeHead(404).end(JSON.stringify({ errors: [{ code: "MANIFEST_UNKNOWN" }] }));
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = `127.0.0.1:${(server.address() as AddressInfo).port}`;

  async function serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { authorization } = request.headers;
    const basic = login && `Basic ${Buffer.from(`${login.username}:${login.password}`).toString("base64")}`;
    const [path = "", query] = (request.url ?? "").split("?");
    if (path === "/token" && query !== undefined) {
      response.writeHead(authorization === basic ? 200 : 401).end(JSON.stringify({ token: TOKEN }));
      return;
    }
    if (login !== undefined && authorization !== (login.scheme === "basic" ? basic : `Bearer ${TOKEN}`)) {
      const challenge =
        login.scheme === "basic"
          ? 'Basic realm="test"'
          : `Bearer realm="http://${address}/token",service="test",scope="repository:image:pull"`;
      response.writeHead(401, { "www-authenticate": challenge }).end();
      return;
    }
    const [, name = "", kind, version = ""] = PATH.exec(path) ?? [];
    const [hex] = /(?<=^sha256:)[0-9a-f]{64}$/.exec(version) ?? [];
    if (kind === "manifests" && hex === undefined) {
      const { digest, mediaType } = await namedIn(layouts.get(`${name}:${version}`));
      response.writeHead(200, { "content-type": mediaType, "docker-content-digest": digest });
      response.end(await readFile(blobOf(layouts.get(`${name}:${version}`), digest.slice(7))));
      return;
    }
    for (const [image, layout] of layouts) {
      if (!image.startsWith(`${name}:`) || hex === undefined) continue;
      const blob = blobOf(layout, hex);
      const found = await stat(blob).catch(() => undefined);
      if (found === undefined) continue;
      const type = kind === "manifests" ? (await namedIn(layout)).mediaType : "application/octet-stream";
      response.writeHead(200, { "content-type": type, "content-length": found.size });
      await pipeline(createReadStream(blob), response);
      return;
    }
    throw new Error(`there is no ${path}`);
  }

  return {
    address,
    requests,
    add: (image, layout) => void layouts.set(image, layout),
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
      await once(server, "close");
    },
  };
}

async function namedIn(layout = ""): Promise<Index["manifests"][number]> {
  const { manifests } = JSON.parse(await readFile(join(layout, "index.json"), "utf8")) as Index;
  const [first] = manifests;
  if (first === undefined) throw new Error("the layout names no image");
  return first;
}

function blobOf(layout = "", hex: string): string {
  return join(layout, "blobs/sha256", hex);
}
