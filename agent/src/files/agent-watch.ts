import { SandboxError, type WatchEvent, type WatchEventType, networkMountError } from "@coppice/core/backend";
import { type Failure, fileError, readFailure } from "../wire/answers.js";
import { type Channel, type Link, PayloadReader, ProtocolError, Reply } from "../wire/frames.js";
import { CreditedQueue } from "../wire/credited-queue.js";

/** More than the kernel's queue holds, so a slow reader does not lose the watch earlier than there. */
export const WATCH_WINDOW_BYTES = 1_048_576;

const TYPES: readonly (WatchEventType | undefined)[] = [
  undefined,
  "create",
  "write",
  "remove",
  "rename",
  "chmod",
];

export class AgentWatch implements Channel {
  readonly #link: Link;
  /** Kept as received: parsed, small changes would take many times their bytes. */
  readonly #queue: CreditedQueue<Buffer>;
  readonly #path: string;

  constructor(link: Link, path: string) {
    this.#link = link;
    this.#path = path;
    this.#queue = new CreditedQueue(link, WATCH_WINDOW_BYTES);
  }

  receive(type: number, payload: Buffer): void {
    if (type === Reply.Error) {
      const failure = readFailure(payload);
      this.#link.release();
      this.#queue.fail(watchError(failure, this.#path));
    } else if (type === Reply.Changes) {
      const cost = this.#queue.spend(payload.byteLength);
      checkChanges(payload);
      this.#queue.push(payload, cost);
    } else {
      throw new ProtocolError(`frame ${type} for a watch`);
    }
  }

  lost(reason: SandboxError): void {
    this.#queue.fail(reason);
  }

  async *events(signal: AbortSignal): AsyncGenerator<WatchEvent, undefined> {
    const stop = (): void => this.stop();
    signal.addEventListener("abort", stop);
    try {
      if (signal.aborted) return;
      for (;;) {
        const changes = await this.#queue.take();
        if (changes === undefined) return;
        for (const event of readChanges(changes)) {
          if (signal.aborted) return;
          yield event;
        }
      }
    } finally {
      signal.removeEventListener("abort", stop);
      this.stop();
    }
  }

  stop(): void {
    this.#queue.clear();
    this.#link.release();
  }
}

/** Why a watch was refused, or has ended. */
export function watchError(failure: Failure, path: string): SandboxError {
  const options = { cause: failure };
  switch (failure.code) {
    case "EOVERFLOW":
      return new SandboxError(
        "events_lost",
        "changes came faster than they were read: some are lost",
        options,
      );
    case "ENOSPC":
      return new SandboxError("watch_limit_reached", "too many directories are watched", options);
    case "EREMOTE":
      return networkMountError(path, failure);
    default:
      return fileError(failure, "watch", path);
  }
}

function checkChanges(payload: Buffer): void {
  const reader = new PayloadReader(payload);
  while (!reader.isAtEnd) {
    if (TYPES[reader.u8()] === undefined) throw new ProtocolError("an unknown kind of change");
    reader.skip(reader.u16());
  }
}

function* readChanges(payload: Buffer): Generator<WatchEvent, undefined> {
  const reader = new PayloadReader(payload);
  while (!reader.isAtEnd) {
    const type = TYPES[reader.u8()];
    const name = reader.text();
    if (type !== undefined) yield { type, name };
  }
}
