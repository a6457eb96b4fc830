import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import {
  type Clock,
  ENVD_PORT,
  type Guard,
  keptFile,
  SandboxError,
  type Sandboxes,
  sandboxNotFound,
  type Targets,
} from "@coppice/core";
import type { SandboxId } from "@coppice/core/backend";
import { REASONS } from "../reasons.js";

const KEY_BYTES = 32;

/**
 * Reads the key of a server's download links from its file, or creates it, for this user alone.
 * @throws Error naming the file when it cannot be used.
 */
export async function persistentKey(path: string): Promise<Buffer> {
  const { contents } = await keptFile(path, () => randomBytes(KEY_BYTES));
  if (contents.length === KEY_BYTES) return contents;
  throw new Error(`the key file ${path} has ${contents.length} bytes instead of ${KEY_BYTES}: remove it`);
}

/** Routes of links: `/files/download-token/<token>?path=<path>`. */
export const DOWNLOAD_TOKEN_PATH = "/files/download-token/";

/** A link that allows its bearer to read one file of one sandbox for a while. */
interface DownloadLink {
  readonly token: string;
  /** Unix seconds. */
  readonly expiresAt: number;
}

interface DownloadLinksOptions {
  readonly clock: Clock;
  readonly lifetimeMs: number;
}

const TOKEN = /^([A-Za-z0-9_-]{1,128})\.(\d{1,12})\.([0-9a-f]{64})$/;

/**
 * Makes and checks the tokens of download links: the sandbox in base64url, the link's expiry in Unix seconds, and an
 * HMAC-SHA256 over both and the path, in hex.
 */
export class DownloadLinks {
  readonly #options: DownloadLinksOptions;
  #key: Buffer | undefined;

  constructor(options: DownloadLinksOptions) {
    this.#options = options;
  }

  /** Sets the key at the server's start, before any request. */
  useKey(key: Buffer): void {
    this.#key = key;
  }

  make(sandboxId: SandboxId, path: string): DownloadLink {
    const { clock, lifetimeMs } = this.#options;
    const expiresAt = Math.floor((clock.now() + lifetimeMs) / 1000);
    const id = Buffer.from(sandboxId).toString("base64url");
    const mac = this.#mac(sandboxId, path, expiresAt).toString("hex");
    return { token: `${id}.${expiresAt}.${mac}`, expiresAt };
  }

  /**
   * The sandbox of a token.
   * @throws SandboxError unauthenticated unless it was made here, for this path, and has not expired.
   */
  check(token: string, path: string): SandboxId {
    const [, encodedId = "", seconds = "", mac = ""] = TOKEN.exec(token) ?? [];
    const sandboxId = Buffer.from(encodedId, "base64url").toString();
    const expiresAt = Number(seconds);
    const expected = this.#mac(sandboxId, path, expiresAt);
    const given = Buffer.from(mac, "hex");
    if (given.length !== expected.length || !timingSafeEqual(given, expected))
      throw new SandboxError(REASONS.download_link_invalid, "invalid download link");
    if (expiresAt < Math.floor(this.#options.clock.now() / 1000))
      throw new SandboxError(REASONS.download_link_expired, "the download link has expired");
    return sandboxId;
  }

  /** The sandbox that a token names, whoever made it; undefined for what is no token. */
  sandboxOf(token: string): SandboxId | undefined {
    const encodedId = TOKEN.exec(token)?.[1];
    return encodedId && Buffer.from(encodedId, "base64url").toString();
  }

  #mac(sandboxId: SandboxId, path: string, expiresAt: number): Buffer {
    if (this.#key === undefined) throw new Error("the key of download links is not there yet");
    // Unambiguous for any path: ids and numbers contain no bar.
    return createHmac("sha256", this.#key).update(`${sandboxId}|${path}|${expiresAt}`).digest();
  }
}

/** Admits the bearer of a link to the sandbox that it is for: a refused one resumes none. */
export function downloadLinkGuard(links: DownloadLinks): Guard {
  return ({ url, target }) => {
    const { token, path } = partsOf(url);
    // The client may have named another sandbox itself.
    if (links.check(token, path) !== target?.sandbox.record.id)
      throw new SandboxError(REASONS.download_link_invalid, "invalid download link");
  };
}

/**
 * Finds the sandbox of a download link, which only its token names. The resolver throws the errors of `check`. The key is
 * of the server that made the link.
 */
export function downloadLinkTarget(
  links: DownloadLinks,
  sandboxes: Sandboxes,
): Parameters<Targets["add"]>[0] {
  return async (_message, url) => {
    if (!url.pathname.startsWith(DOWNLOAD_TOKEN_PATH)) return undefined;
    const { token, path } = partsOf(url);
    try {
      const sandboxId = links.check(token, path);
      const sandbox = sandboxes.find(sandboxId);
      if (sandbox?.isReachable === true) return { sandbox, port: ENVD_PORT };
      throw sandboxNotFound(sandboxId);
    } catch (error) {
      const sandboxId = links.sandboxOf(token);
      if (sandboxId === undefined || sandboxes.find(sandboxId) !== undefined) throw error;
      return { sandboxId, refusal: error as Error };
    }
  };
}

function partsOf({ pathname, searchParams }: URL): { readonly token: string; readonly path: string } {
  return { token: pathname.slice(DOWNLOAD_TOKEN_PATH.length), path: searchParams.get("path") ?? "" };
}
