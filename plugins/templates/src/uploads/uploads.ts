import { createHmac, randomUUID } from "node:crypto";
import { createWriteStream, mkdirSync } from "node:fs";
import { readdir, rename, rm, stat } from "node:fs/promises";
import type { IncomingMessage } from "node:http";
import { dirname, join } from "node:path";
import { pipeline } from "node:stream/promises";
import { bodyChunks, type Clock, digestOf, SandboxError, secretEqual } from "@coppice/core";
import { z } from "zod";
import type { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import { REASONS } from "../reasons.js";

/** Permission to upload one archive. */
const ticket = z.object({
  tenant: z.string(),
  hash: z.string().regex(/^[0-9a-f]{64}$/),
  /** Milliseconds since the Unix epoch. */
  endsAtMs: z.number(),
});

export type UploadTickets = ReturnType<typeof uploadTickets>;

/** Writes tickets as texts for a URL, and reads them. Only texts of this server's key are read. */
export function uploadTickets(key: () => Uint8Array) {
  const sign = (payload: string): string => createHmac("sha256", key()).update(payload).digest("base64url");
  /** True for a text that this server has written. */
  const isOwn = (text: string): boolean => {
    const [payload = "", signature = ""] = text.split(".");
    return secretEqual(sign(payload), signature);
  };
  return {
    isOwn,
    write(permission: z.infer<typeof ticket>): string {
      const payload = Buffer.from(JSON.stringify(permission)).toString("base64url");
      return `${payload}.${sign(payload)}`;
    },
    /** @throws SandboxError unauthenticated */
    read(text: string, nowMs: number): z.infer<typeof ticket> {
      const [payload = ""] = text.split(".");
      if (!isOwn(text))
        throw new SandboxError("signature_invalid", "the URL of the upload is not one of this server");
      const read = ticket.parse(JSON.parse(Buffer.from(payload, "base64url").toString("utf8")));
      if (read.endsAtMs < nowMs)
        throw new SandboxError("signature_expired", "the URL of the upload has expired");
      return read;
    },
  };
}

interface UploadsOptions {
  /** Absolute. */
  readonly directory: () => string;
  readonly store: () => TemplatesStore;
  readonly settings: Pick<
    TemplatesConfig,
    "maxUpload" | "maxUploads" | "uploadsKept" | "buildTimeout" | "waitingTimeout"
  >;
  readonly clock: Clock;
}

/** The key of an archive. */
interface UploadKey {
  readonly tenant: string;
  /** 64 hexadecimal digits. */
  readonly hash: string;
}

/** Archives of files for COPY steps, on the disk, by tenant and hash. */
export class Uploads {
  readonly #options: UploadsOptions;
  /** Announced bytes of uploads under way as they count, by tenant. */
  readonly #incoming = new Map<string, number>();

  constructor(options: UploadsOptions) {
    this.#options = options;
  }

  /** Removes what is left of broken uploads, and brings the store and the directory into agreement. */
  async reconcile(): Promise<void> {
    const { directory, store } = this.#options;
    await rm(this.#incomingDirectory(), { recursive: true, force: true });
    mkdirSync(this.#incomingDirectory(), { recursive: true, mode: 0o700 });
    const kept = new Set<string>();
    for (const { tenant, hash, bytes } of store().uploads.all()) {
      const path = this.#pathOf({ tenant, hash });
      const found = await stat(path).catch(() => undefined);
      if (found?.size === bytes) kept.add(path);
      else store().uploads.remove({ tenant, hash });
    }
    for (const folder of await readdir(directory())) {
      if (folder === INCOMING) continue;
      for (const name of await readdir(join(directory(), folder))) {
        const path = join(directory(), folder, name);
        if (!kept.has(path)) await rm(path, { force: true });
      }
    }
  }

  has({ tenant, hash }: UploadKey): boolean {
    const { store, clock } = this.#options;
    return store().uploads.update({ tenant, hash }, { usedAtMs: clock.now() }) > 0;
  }

  /** Path of an archive, which stays for as long as a build may take; undefined when there is none. */
  find(key: UploadKey): string | undefined {
    return this.has(key) ? this.#pathOf(key) : undefined;
  }

  /**
   * Writes the body of a request as an archive: all of it, or nothing.
   * @throws SandboxError upload_length_missing, body_too_large, upload_storage_full, client_gone.
   */
  async receive({ tenant, hash }: UploadKey, message: IncomingMessage): Promise<void> {
    const { settings } = this.#options;
    const bytes = lengthOf(message);
    if (bytes > settings.maxUpload)
      throw new SandboxError("body_too_large", `the archive is larger than ${settings.maxUpload} bytes`);
    const path = join(this.#incomingDirectory(), randomUUID());
    const counted = bytes + ARCHIVE_BYTES;
    this.#announce(tenant, counted);
    try {
      await this.#makeRoom(tenant);
      const file = createWriteStream(path, { flags: "wx", mode: 0o600 });
      await pipeline(bodyChunks(message), file);
      await this.#adopt({ tenant, hash }, path, bytes);
    } finally {
      await rm(path, { force: true });
      this.#announce(tenant, -counted);
    }
  }

  /** Keeps an archive of the server's own, unless it is here. @param write makes the file. */
  async keep(key: UploadKey, write: (path: string) => Promise<void>): Promise<void> {
    if (this.has(key)) return;
    const path = join(this.#incomingDirectory(), randomUUID());
    try {
      await write(path);
      await this.#adopt(key, path, (await stat(path)).size);
    } finally {
      await rm(path, { force: true });
    }
  }

  async #adopt({ tenant, hash }: UploadKey, path: string, bytes: number): Promise<void> {
    const { store, clock } = this.#options;
    const kept = this.#pathOf({ tenant, hash });
    mkdirSync(dirname(kept), { recursive: true, mode: 0o700 });
    await rename(path, kept);
    store().uploads.insert({ tenant, hash, bytes, usedAtMs: clock.now() }, "REPLACE");
  }

  /** Removes archives that have not been used for long. */
  async sweep(): Promise<void> {
    const { store, clock, settings } = this.#options;
    const usedAtMs = clock.now() - Math.max(settings.uploadsKept, this.#neededMs());
    for (const key of store().uploads.all({ usedAtMs: { "<": usedAtMs } })) await this.#remove(key);
  }

  #announce(tenant: string, bytes: number): void {
    const total = (this.#incoming.get(tenant) ?? 0) + bytes;
    if (total > 0) this.#incoming.set(tenant, total);
    else this.#incoming.delete(tenant);
  }

  /** Removes the least recently used archives of a tenant until there is room for the announced ones. */
  async #makeRoom(tenant: string): Promise<void> {
    const { store, clock, settings } = this.#options;
    const usedBytes = (): number =>
      store().uploads.sum("bytes", { tenant }) + store().uploads.count({ tenant }) * ARCHIVE_BYTES;
    const isFull = (): boolean => usedBytes() + (this.#incoming.get(tenant) ?? 0) > settings.maxUploads;
    const neededAtMs = clock.now() - this.#neededMs();
    for (const key of isFull() ? store().uploads.all({ tenant }, { by: "used_at_ms" }) : []) {
      if (!isFull() || key.usedAtMs > neededAtMs) break;
      await this.#remove(key);
    }
    if (!isFull()) return;
    const text = `the archives of a tenant may have ${settings.maxUploads} bytes at one time`;
    throw new SandboxError(REASONS.upload_storage_full, text);
  }

  /** How long a build may need an archive after its upload, or its last use. */
  #neededMs(): number {
    const { waitingTimeout, buildTimeout } = this.#options.settings;
    return waitingTimeout + buildTimeout;
  }

  async #remove({ tenant, hash }: UploadKey): Promise<void> {
    this.#options.store().uploads.remove({ tenant, hash });
    await rm(this.#pathOf({ tenant, hash }), { force: true });
  }

  #incomingDirectory(): string {
    return join(this.#options.directory(), INCOMING);
  }

  /** The name of a tenant may be any text: its digest is a plain name of a file. */
  #pathOf({ tenant, hash }: UploadKey): string {
    if (!HASH.test(hash)) throw new SandboxError("request_invalid", "Invalid files hash");
    return join(this.#options.directory(), digestOf(tenant), hash);
  }
}

const INCOMING = "incoming";
/** An archive counts as that much more than it has: each takes a file, and a row that is counted with all others. */
const ARCHIVE_BYTES = 64 * 1024;
const HASH = /^[0-9a-f]{64}$/;

function lengthOf({ headers }: IncomingMessage): number {
  const length = headers["content-length"];
  if (length !== undefined && headers["transfer-encoding"] === undefined) return Number(length);
  throw new SandboxError(REASONS.upload_length_missing, "an upload needs a Content-Length");
}
