import { SandboxError, type FileInfo } from "@coppice/core/backend";
import { type Failure, fileError, readFailure, readFileInfo } from "../wire/answers.js";
import { type Channel, type Link, PayloadReader, ProtocolError, Reply } from "../wire/frames.js";
import { CreditedQueue } from "../wire/credited-queue.js";

export const LISTING_WINDOW_BYTES = 131_072;

export class AgentListing implements Channel {
  readonly #link: Link;
  readonly #path: string;
  readonly #queue: CreditedQueue<readonly FileInfo[]>;

  constructor(link: Link, path: string) {
    this.#link = link;
    this.#path = path;
    this.#queue = new CreditedQueue(link, LISTING_WINDOW_BYTES);
  }

  receive(type: number, payload: Buffer): void {
    if (type === Reply.Entries) {
      const cost = this.#queue.spend(payload.byteLength);
      this.#queue.push(this.#readEntries(payload), cost);
    } else if (type === Reply.Done) {
      this.#link.release();
      this.#queue.end();
    } else if (type === Reply.Error) {
      const failure = readFailure(payload);
      this.#link.release();
      this.#queue.fail(listError(failure, this.#path));
    } else {
      throw new ProtocolError(`frame ${type} for a list`);
    }
  }

  lost(reason: SandboxError): void {
    this.#queue.fail(reason);
  }

  async *entries(): AsyncGenerator<FileInfo, undefined> {
    try {
      for (;;) {
        const entries = await this.#queue.take();
        if (entries === undefined) return;
        yield* entries;
      }
    } finally {
      this.#queue.clear();
      this.#link.release();
    }
  }

  #readEntries(payload: Buffer): readonly FileInfo[] {
    const reader = new PayloadReader(payload);
    const base = this.#path.replace(/\/+$/, "");
    const entries: FileInfo[] = [];
    while (!reader.isAtEnd) {
      const name = reader.text();
      if (name === "" || name.startsWith("/") || name.includes("\0"))
        throw new ProtocolError("a name that is none");
      entries.push(readFileInfo(reader, `${base}/${name}`));
    }
    return entries;
  }
}

function listError(failure: Failure, path: string): SandboxError {
  if (failure.code === "ENOTDIR")
    return new SandboxError("path_is_file", `path is not a directory: ${path}`, { cause: failure });
  return fileError(failure, "lstat", path);
}
