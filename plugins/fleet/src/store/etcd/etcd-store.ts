import { setImmediate as nextTurn, setTimeout as sleep } from "node:timers/promises";
import { messageOf } from "@coppice/core";
import type { z } from "zod";
import {
  type Change,
  type Check,
  type Entry,
  type FleetStore,
  type Lease,
  type Listing,
  type StoreMember,
  StoreUnavailable,
  type Update,
  afterPrefix,
} from "../fleet-store.js";
import { AnswerTooLarge, type EtcdClient, EtcdRefusal, NOT_FOUND } from "./etcd-client.js";
import {
  anyAnswer,
  commitAnswer,
  encode,
  entryOf,
  grantAnswer,
  keyOf,
  membersAnswer,
  rangeAnswer,
  renewAnswer,
  statusAnswer,
  watchMessage,
} from "./etcd-messages.js";

interface EtcdStoreOptions {
  readonly client: EtcdClient;
  /** Of all keys, `/coppice/`. */
  readonly prefix: string;
  /** Silence of a watch after which it is made again: a dead connection says nothing. */
  readonly watchSilenceMs: number;
}

/**
 * Keys of one answer; a listing takes as many as it needs, of one revision. etcd counts all that follow for each of them:
 * with 1 000 a listing of 100 000 took 2.2 s, with 3 000 1.6 s. What a larger one leaves to the collector stays in memory.
 */
const PAGE = 2000;
/** An answer that is too large is asked for again, for so many keys less. */
const SMALLER = 8;
/** Entries that are visited in one turn of the event loop. */
const VISITED = 250;
/**
 * Bytes of a key and a value of this fleet. Others are somebody else's: commits that repeat them would be refused by etcd,
 * together with what they have of other sandboxes.
 */
const MOST_KEY_BYTES = 1024;
const MOST_VALUE_BYTES = 256 * 1024;
const RETRY_MS = 500;
/** Renewals at one time, each after a change of etcd's leader. */
const RENEWALS = 3;
/** Part of a lease's time after which another member is asked to renew it. */
const RENEWAL_PATIENCE = 0.125;

/** The shared state in etcd, 3.4 or newer. */
export class EtcdStore implements FleetStore {
  readonly #options: EtcdStoreOptions;
  /** Size of the cluster, when it was last known. */
  #members: number | undefined;

  constructor(options: EtcdStoreOptions) {
    this.#options = options;
  }

  async get(key: string): Promise<Entry | undefined> {
    const { client, prefix } = this.#options;
    const body = { key: encode(prefix + key) };
    const { kvs } = await client.call("kv/range", body, { schema: rangeAnswer, canRepeat: true });
    const [found] = kvs;
    return found && entryOf(found, prefix.length);
  }

  async list(prefix: string): Promise<Listing> {
    const entries: Entry[] = [];
    const revision = await this.each(prefix, (entry) => entries.push(entry));
    return { entries, revision };
  }

  async each(prefix: string, visit: (entry: Entry) => void, afterRevision = 0): Promise<number> {
    const { client, prefix: own } = this.#options;
    const end = encode(afterPrefix(own + prefix));
    let key = encode(own + prefix);
    let revision = 0;
    let limit = PAGE;
    for (;;) {
      const body = {
        key,
        range_end: end,
        limit: String(limit),
        revision: String(revision),
        // Where it is set, etcd reads everything for each page: there should be few then.
        ...(afterRevision > 0 && { min_mod_revision: String(afterRevision + 1) }),
      };
      const options = { schema: rangeAnswer, canRepeat: true };
      const page = await client.call("kv/range", body, options).catch((error: unknown) => {
        const isTooLarge = error instanceof StoreUnavailable && error.cause instanceof AnswerTooLarge;
        if (isTooLarge && limit > 1) return undefined;
        throw error;
      });
      if (page === undefined) {
        limit = Math.ceil(limit / SMALLER);
        continue;
      }
      limit = Math.min(2 * limit, PAGE);
      const { header, kvs, more } = page;
      // The pages that follow are of the revision of the first, whatever is committed meanwhile.
      revision ||= header.revision;
      for (const [index, found] of kvs.entries()) {
        if (index % VISITED === 0) await nextTurn();
        if (isOwn(found)) visit(entryOf(found, own.length));
      }
      const last = kvs.at(-1);
      if (!more || last === undefined) return revision;
      key = Buffer.concat([Buffer.from(last.key, "base64"), Buffer.of(0)]).toString("base64");
    }
  }

  async commit(checks: readonly Check[], changes: readonly Change[]): Promise<number | undefined> {
    const { client, prefix } = this.#options;
    const compare = checks.flatMap((check) => compareOf(check, prefix));
    const success = changes.map((change) =>
      "delete" in change
        ? { requestDeleteRange: { key: encode(prefix + change.delete) } }
        : {
            requestPut: {
              key: encode(prefix + change.put),
              value: encode(change.value),
              ...(change.lease && { lease: change.lease.id }),
            },
          },
    );
    try {
      const { header, succeeded } = await client.call(
        "kv/txn",
        { compare, success },
        { schema: commitAnswer, canRepeat: false },
      );
      return succeeded ? header.revision : undefined;
    } catch (error) {
      // The lease has ended.
      if (error instanceof EtcdRefusal && error.code === NOT_FOUND) return undefined;
      throw error;
    }
  }

  async *watch(prefix: string, afterRevision: number, signal: AbortSignal): AsyncGenerator<Update> {
    let revision = afterRevision;
    while (!signal.aborted) {
      try {
        for await (const update of this.#watchOnce(prefix, revision, signal)) {
          yield update;
          if (update.kind === "compacted") return;
          revision = update.revision;
        }
      } catch (error) {
        if (signal.aborted) return;
        if (!(error instanceof StoreUnavailable)) throw error;
      }
      await sleep(RETRY_MS, undefined, { signal }).catch(() => undefined);
    }
  }

  async *#watchOnce(prefix: string, after: number, signal: AbortSignal): AsyncGenerator<Update> {
    const { client, prefix: own, watchSilenceMs } = this.#options;
    const silent = new AbortController();
    const onSilence = (): void => silent.abort(new StoreUnavailable("a watch was silent"));
    let silence = setTimeout(onSilence, watchSilenceMs);
    const request = {
      create_request: {
        key: encode(own + prefix),
        range_end: encode(afterPrefix(own + prefix)),
        start_revision: String(after + 1),
        progress_notify: true,
        // Otherwise a watch that catches up gets the changes of a thousand commits at once.
        fragment: true,
      },
    };
    try {
      const ended = AbortSignal.any([signal, silent.signal]);
      for await (const message of client.stream("watch", request, { schema: watchMessage, signal: ended })) {
        clearTimeout(silence);
        silence = setTimeout(onSilence, watchSilenceMs);
        if (message.compact_revision > 0) yield { kind: "compacted" };
        if (message.canceled) {
          // A token that is not taken is told in words alone; a read replaces it, or says what else is refused.
          await this.get("");
          return;
        }
        if (message.created) continue;
        const { events } = message;
        // One message without events tells of progress alone.
        for (let at = 0; at < Math.max(1, events.length); at += VISITED) {
          if (at > 0) await nextTurn();
          const part = events.slice(at, at + VISITED);
          const last = part.at(-1)?.kv.mod_revision;
          const isWhole = !message.fragment && at + VISITED >= events.length;
          yield {
            kind: "changes",
            // That of the header may be ahead of events that follow, while the watch catches up. Further changes of the
            // last commit may follow a part.
            revision: last === undefined ? message.header.revision : isWhole ? last : last - 1,
            changes: part.map(({ type, kv }) => ({
              key: keyOf(kv, own.length),
              entry: type === "PUT" && isOwn(kv) ? entryOf(kv, own.length) : undefined,
            })),
          };
        }
      }
    } finally {
      clearTimeout(silence);
    }
  }

  async grant(ttlMs: number): Promise<Lease> {
    const body = { TTL: String(Math.ceil(ttlMs / 1000)) };
    // One that is granted twice ends by itself.
    const { client } = this.#options;
    const { ID, TTL } = await client.call("lease/grant", body, { schema: grantAnswer, canRepeat: true });
    const { members } = await client.call(
      "cluster/member/list",
      {},
      { schema: membersAnswer, canRepeat: true },
    );
    this.#members = members.length;
    return { id: ID, ttlMs: TTL * 1000 };
  }

  /**
   * A leader that has been replaced renews leases until it finds out, but not where leases end. So the leader has to be
   * the same one after the renewal, by the word of a majority.
   */
  async renew({ id, ttlMs }: Lease, signal?: AbortSignal): Promise<boolean> {
    const limitMs = Math.floor(ttlMs * RENEWAL_PATIENCE);
    const options = { canRepeat: true, limitMs, ...(signal && { signal }) };
    const { client, prefix } = this.#options;
    const position = async (): Promise<string> => {
      const body = { key: encode(prefix), count_only: true };
      const { header } = await client.call("kv/range", body, { schema: rangeAnswer, ...options });
      return positionOf(header);
    };
    for (let before = await position(), tries = 0; tries < RENEWALS; tries += 1) {
      const { result } = await client.call(
        "lease/keepalive",
        { ID: id },
        { schema: renewAnswer, ...options },
      );
      const after = await position();
      if (before === after && after === positionOf(result.header)) return result.TTL > 0;
      before = after;
    }
    throw new StoreUnavailable("the leader of etcd has changed again and again");
  }

  async revoke({ id }: Lease): Promise<void> {
    try {
      await this.#options.client.call("lease/revoke", { ID: id }, { schema: anyAnswer, canRepeat: true });
    } catch (error) {
      if (!(error instanceof EtcdRefusal) || error.code !== NOT_FOUND) throw error;
    }
  }

  async lacksMajority(signal: AbortSignal): Promise<boolean> {
    const statuses = await this.#options.client.callEach("maintenance/status", {
      schema: statusAnswer,
      signal,
    });
    const leaders = statuses.flatMap(({ answer }) => (answer === undefined ? [] : [answer.leader]));
    const outside = statuses.filter(({ isAbsent }) => isAbsent).length + leaders.length;
    return (
      // What a member does that is not among the endpoints is unknown.
      statuses.length === this.#members &&
      // A firewall, too, may say that nothing listens there: a member has to say so itself.
      leaders.length > 0 &&
      leaders.every((leader) => leader === "0") &&
      outside > statuses.length / 2
    );
  }

  async members(signal: AbortSignal): Promise<readonly StoreMember[]> {
    const { client } = this.#options;
    const statuses = await client.callEach("maintenance/status", { schema: statusAnswer, signal });
    return statuses.map(({ endpoint: url, answer, error }) => ({
      url,
      version: answer?.version,
      isReady: answer !== undefined && answer.leader !== "0",
      problem: error === undefined ? undefined : messageOf(error),
    }));
  }

  async close(): Promise<void> {
    this.#options.client.close();
  }
}

/** False for an entry that no server of this fleet has put. Lengths in base64 are a third more. */
function isOwn({ key, value }: { readonly key: string; readonly value: string }): boolean {
  return key.length * 0.75 <= MOST_KEY_BYTES && value.length * 0.75 <= MOST_VALUE_BYTES;
}

function compareOf(check: Check, own: string): readonly object[] {
  if ("prefix" in check) {
    const { prefix, notPutAfter } = check;
    const range = { key: encode(own + prefix), range_end: encode(afterPrefix(own + prefix)) };
    return [{ ...range, target: "MOD", result: "LESS", mod_revision: String(notPutAfter + 1) }];
  }
  const { createRevision, modRevision } = check;
  const key = encode(own + check.key);
  return [
    ...(createRevision === undefined
      ? []
      : [{ key, target: "CREATE", create_revision: String(createRevision) }]),
    ...(modRevision === undefined ? [] : [{ key, target: "MOD", mod_revision: String(modRevision) }]),
  ];
}

/** Which member answered, and in whose time as a leader. */
function positionOf({ member_id: member, raft_term: term }: z.infer<typeof rangeAnswer>["header"]): string {
  return `${member} ${term}`;
}
