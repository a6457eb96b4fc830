import { pipeline } from "node:stream/promises";
import {
  bodyChunks,
  type Guard,
  HttpError,
  type Peers,
  readJsonBody,
  requestOf,
  type Router,
  SandboxError,
  type SurfaceRequest,
  toHttpError,
  type Volumes,
} from "@coppice/core";
import type { FileInfo, Files } from "@coppice/core/backend";
import type { SandboxApiConfig } from "../sandbox-api-config.js";
import {
  changeInVolume,
  contentOf,
  listVolume,
  makeVolumeDirectory,
  parseVolumeQuery,
  removeFromVolume,
  volumeMetadataBody,
  type VolumeQuery,
  writeVolumeFile,
} from "./volume-files.js";

/** One entry of a volume for the SDK's `Volume`. Backends know only the time of the last change. */
function volumeEntry(info: FileInfo) {
  const { name, path, kind, sizeBytes, rawMode, uid, gid, modifiedAtMs, symlinkTarget } = info;
  const changed = new Date(modifiedAtMs).toISOString();
  return {
    name,
    type: symlinkTarget === undefined ? kind : "symlink",
    path,
    size: sizeBytes,
    mode: rawMode & 0o7777,
    uid,
    gid,
    atime: changed,
    mtime: changed,
    ctime: changed,
    ...(symlinkTarget !== undefined && { target: symlinkTarget }),
  };
}

type Context = Parameters<Parameters<Router["get"]>[1]>[0];

const BEARER = /^bearer +(\S+)$/i;
const CONTENT = /^\/volumecontent\/([a-z0-9]+)\//;

/** Requires the token of the requested volume. That of an unknown one is checked where it is, or refused by its route. */
export function volumeGuard(volumes: Volumes): Guard {
  return (request) => {
    try {
      const [, id = ""] = CONTENT.exec(request.url.pathname) ?? [];
      const token = tokenOf(request.headers);
      if (volumes.knows(id)) volumes.requireToken(id, token);
    } catch (error) {
      throw toVolumeError(error, request);
    }
  };
}

export interface VolumeContentRoutesOptions extends Pick<SandboxApiConfig, "maxBody" | "maxVolumeEntries"> {
  readonly volumes: Volumes;
  readonly peers: Pick<Peers, "hold">;
}

/** Serves the contents of volumes to bearers of their tokens: E2B's volume API, on its own listener. */
export function mountVolumeContents(
  router: Router,
  { volumes, peers, maxBody, maxVolumeEntries }: VolumeContentRoutesOptions,
): void {
  peers.hold({
    kind: "volume-contents",
    surface: "volumes",
    inPath: (pathname) => CONTENT.exec(pathname)?.[1],
    has: (id) => volumes.knows(id),
  });
  const serve = (
    method: "get" | "patch" | "delete" | "post" | "put",
    path: "path" | "dir" | "file",
    run: (ctx: Context, files: Files, query: VolumeQuery) => Promise<void>,
  ): void => {
    router[method](`/volumecontent/:id/${path}`, async (ctx: Context) => {
      const request = requestOf(ctx);
      try {
        await using volume = await volumes.open(ctx.params["id"] ?? "", tokenOf(request.headers));
        await run(ctx, volume.files, parseVolumeQuery(request.url.searchParams));
      } catch (error) {
        throw toVolumeError(error, request);
      }
    });
  };

  serve("get", "path", async (ctx, files, { path }) => {
    ctx.body = volumeEntry(await files.stat(path));
  });

  serve("patch", "path", async (ctx, files, { path }) => {
    const change = await readJsonBody(ctx.req, volumeMetadataBody, { limitBytes: maxBody, empty: {} });
    ctx.body = volumeEntry(await changeInVolume(files, { path, ...change }));
  });

  serve("delete", "path", async (ctx, files, { path }) => {
    await removeFromVolume(files, path);
    ctx.status = 204;
  });

  serve("get", "dir", async (ctx, files, query) => {
    ctx.body = (await listVolume(files, query, maxVolumeEntries)).map(volumeEntry);
  });

  serve("post", "dir", async (ctx, files, query) => {
    ctx.body = volumeEntry(await makeVolumeDirectory(files, query));
    ctx.status = 201;
  });

  serve("get", "file", async (ctx, files, { path }) => {
    await using file = await files.read(path);
    ctx.respond = false;
    ctx.res.writeHead(200, {
      "content-type": "application/octet-stream",
      "content-length": file.info.sizeBytes,
    });
    // A client that leaves in the middle is no error, and it is too late for another answer.
    await pipeline(contentOf(file), ctx.res).catch(() => ctx.res.destroy());
  });

  serve("put", "file", async (ctx, files, query) => {
    const info = await writeVolumeFile(files, query, bodyChunks(ctx.req));
    ctx.body = volumeEntry(info);
    ctx.status = 201;
  });
}

function tokenOf(headers: SurfaceRequest["headers"]): string {
  const token = BEARER.exec(headers.authorization ?? "")?.[1];
  if (token !== undefined) return token;
  throw new SandboxError("credential_missing", "authorization header is missing");
}

/** An error in the form of this API: its `code` is a word, where others have a number. */
function toVolumeError(error: unknown, { log }: Pick<SurfaceRequest, "log">): HttpError {
  const answer = toHttpError(error, log);
  const { status, message } = answer;
  const code = error instanceof SandboxError ? error.code : status < 500 ? "invalid_argument" : "internal";
  return new HttpError(status, message, { reason: answer, body: { code, message } });
}
