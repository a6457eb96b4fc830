import { createHmac } from "node:crypto";
import { SandboxError, secretEqual } from "@coppice/core";
import { z } from "zod";

/** Permission to upload one archive. */
export type UploadTicket = z.infer<typeof ticket>;

const ticket = z.object({
  tenant: z.string(),
  hash: z.string().regex(/^[0-9a-f]{64}$/),
  /** Milliseconds since the Unix epoch. */
  endsAtMs: z.number(),
});

/** Writes tickets as texts for a URL, and reads them. Only texts of this server's key are read. */
export class UploadTickets {
  readonly #key: () => Uint8Array;

  constructor(key: () => Uint8Array) {
    this.#key = key;
  }

  write(permission: UploadTicket): string {
    const payload = Buffer.from(JSON.stringify(permission)).toString("base64url");
    return `${payload}.${this.#sign(payload)}`;
  }

  /** True for a text that this server has written. */
  isOwn(text: string): boolean {
    const [payload = "", signature = ""] = text.split(".");
    return secretEqual(this.#sign(payload), signature);
  }

  /** @throws SandboxError unauthenticated */
  read(text: string, nowMs: number): UploadTicket {
    const [payload = ""] = text.split(".");
    if (!this.isOwn(text))
      throw new SandboxError("signature_invalid", "the URL of the upload is not one of this server");
    const read = ticket.parse(JSON.parse(Buffer.from(payload, "base64url").toString("utf8")));
    if (read.endsAtMs < nowMs)
      throw new SandboxError("signature_expired", "the URL of the upload has expired");
    return read;
  }

  #sign(payload: string): string {
    return createHmac("sha256", this.#key()).update(payload).digest("base64url");
  }
}
