import { stat } from "node:fs/promises";
import { join } from "node:path";
import { SandboxError } from "@coppice/core";
import type { Host } from "../host/host.js";

export interface TemplateSignaturesOptions {
  /** Public key of signify(1). */
  readonly publicKey: string;
  /**
   * Directory of signatures: `<dataset>@<snapshot>.sig` with the last part of the dataset's name, or `<template>.sig`.
   */
  readonly directory: string;
}

/**
 * Lets sandboxes start only from signed templates. The signed text is the guid of the snapshot, in digits without a
 * newline: ZFS gives each snapshot a unique guid, and its blocks never change.
 */
export class TemplateSignatures {
  readonly #host: Host;
  readonly #options: TemplateSignaturesOptions;

  constructor(host: Host, options: TemplateSignaturesOptions) {
    this.#host = host;
    this.#options = options;
  }

  /** @throws SandboxError failed_precondition for an unsigned snapshot, not_found for a missing one. */
  async verify(template: string, snapshot: string): Promise<void> {
    const asked = await this.#host.try("zfs", ["get", "-Hp", "-o", "value", "guid", snapshot]);
    if (asked.code !== 0) throw new SandboxError("snapshot_not_found", `there is no snapshot ${snapshot}`);
    const input = asked.stdout.trim();
    const signature = await this.#signatureOf(template, snapshot);
    if (signature !== undefined) {
      const words = ["-V", "-q", "-p", this.#options.publicKey, "-x", signature, "-m", "-"];
      const { code } = await this.#host.try("signify", words, { input });
      if (code === 0) return;
    }
    const reason = signature === undefined ? "is not signed" : "has a signature that is not of its key";
    throw new SandboxError("template_not_signed", `template '${template}' ${reason}`);
  }

  async #signatureOf(template: string, snapshot: string): Promise<string | undefined> {
    const leaf = snapshot.slice(snapshot.lastIndexOf("/") + 1);
    for (const name of [`${leaf}.sig`, `${template}.sig`]) {
      const path = join(this.#options.directory, name);
      const isThere = await stat(path).then(
        (status) => status.isFile(),
        () => false,
      );
      if (isThere) return path;
    }
    return undefined;
  }
}
