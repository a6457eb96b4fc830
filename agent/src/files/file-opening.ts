import type { SandboxError } from "@coppice/core/backend";
import { type Failure, readFailure } from "../wire/agent-error.js";
import type { Channel, Link } from "../wire/channel.js";
import { readFileInfo } from "../wire/file-info.js";
import { ProtocolError, readWhole, Reply, Request } from "../wire/frames.js";
import { AgentFile } from "./agent-file.js";

/** A file that is being opened, and asked for its first bytes at the same time. */
export class FileOpening implements Channel {
  readonly #link: Link;
  readonly #path: string;
  readonly #errorOf: (failure: Failure) => SandboxError;
  readonly #outcome = Promise.withResolvers<AgentFile>();
  #opened: AgentFile | undefined;

  constructor(link: Link, path: string, errorOf: (failure: Failure) => SandboxError) {
    this.#link = link;
    this.#path = path;
    this.#errorOf = errorOf;
  }

  /** Asks for the first bytes, after the request to open. @throws SandboxError as `errorOf` makes it */
  async read(): Promise<AgentFile> {
    this.#link.send(Request.Read, AgentFile.firstPiece());
    return this.#outcome.promise;
  }

  receive(type: number, payload: Buffer): void {
    if (this.#opened !== undefined) {
      this.#opened.receive(type, payload);
    } else if (type === Reply.Info) {
      const info = readWhole(payload, (reader) => readFileInfo(reader, this.#path));
      this.#opened = new AgentFile(this.#link, info);
      this.#outcome.resolve(this.#opened);
    } else if (type === Reply.Error) {
      const failure = readFailure(payload);
      // The answer about the first bytes is still to come.
      this.#link.release();
      this.#outcome.reject(this.#errorOf(failure));
    } else throw new ProtocolError(`frame ${type} for a file that is being opened`);
  }

  lost(reason: SandboxError): void {
    this.#opened?.lost(reason);
    this.#outcome.reject(reason);
  }
}
