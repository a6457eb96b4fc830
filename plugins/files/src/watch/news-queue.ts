import type { Clock } from "@coppice/core";

/** What has been told of an entry since it was looked at last. */
export interface News {
  /** How often the entry of this name came or went. */
  renames: number;
  /** Its content or its attributes were changed. */
  isChanged: boolean;
  /** When its directory had been looked through before it was found there; undefined when nobody found it there. */
  unseenSinceMs: number | undefined;
  /** The name that came or went right after this one. */
  followedBy: string | undefined;
  /** True when the events contradict each other, and no further one has come in time. */
  isAll: boolean;
}

interface Deferred {
  readonly news: News;
  readonly cancel: () => void;
}

export interface NewsQueueOptions {
  readonly clock: Clock;
  /** Looks at an entry. */
  readonly look: (name: string, news: News) => void;
}

/** Looks before other work gets its turn: about 1 ms. */
const LOOKS_PER_TURN = 64;

/** What is to be looked at, in the order in which it was told, and each name once. */
export class NewsQueue {
  readonly #options: NewsQueueOptions;
  readonly #news = new Map<string, News>();
  readonly #deferred = new Map<string, Deferred>();
  #latestRename: News | undefined;
  #turn: NodeJS.Immediate | undefined;
  #rest = Promise.withResolvers<void>();

  constructor(options: NewsQueueOptions) {
    this.#options = options;
    this.#rest.resolve();
  }

  /** An entry of this name came or went. */
  renamed(name: string): void {
    const news = this.#add(name);
    news.renames++;
    if (this.#latestRename !== undefined) this.#latestRename.followedBy = name;
    this.#latestRename = news;
  }

  changed(name: string): void {
    this.#add(name).isChanged = true;
  }

  /**
   * An entry of this name was found in its directory.
   * @param unseenSinceMs when that had been looked through before; 0 when it never was.
   */
  found(name: string, unseenSinceMs: number): void {
    const news = this.#add(name);
    news.unseenSinceMs = Math.min(news.unseenSinceMs ?? unseenSinceMs, unseenSinceMs);
  }

  /** Nothing is known but that it is worth a look. */
  look(name: string): void {
    this.#add(name);
  }

  /** Looks again when more is told of the entry, or after `delayMs`. */
  defer(name: string, news: News, delayMs: number): void {
    const onTime = (): void => void (this.#add(name).isAll = true);
    this.#deferred.set(name, { news, cancel: this.#options.clock.after(delayMs, onTime) });
  }

  get size(): number {
    return this.#news.size;
  }

  /** What has been told of an entry that was not looked at since. */
  of(name: string): News | undefined {
    return this.#news.get(name);
  }

  /** Resolves when everything has been looked at. */
  async rest(): Promise<void> {
    await this.#rest.promise;
  }

  close(): void {
    clearImmediate(this.#turn);
    this.#turn = undefined;
    for (const { cancel } of this.#deferred.values()) cancel();
    this.#deferred.clear();
    this.#news.clear();
    this.#rest.resolve();
  }

  #add(name: string): News {
    const known = this.#news.get(name);
    if (known !== undefined) return known;
    if (this.#news.size === 0) this.#rest = Promise.withResolvers();
    const deferred = this.#deferred.get(name);
    deferred?.cancel();
    this.#deferred.delete(name);
    const news = deferred?.news ?? noNews();
    this.#news.set(name, news);
    this.#schedule();
    return news;
  }

  #run(): void {
    this.#turn = undefined;
    let left = LOOKS_PER_TURN;
    for (const [name, news] of this.#news) {
      if (left-- === 0) break;
      this.#news.delete(name);
      this.#options.look(name, news);
    }
    if (this.#news.size > 0) this.#schedule();
    else this.#rest.resolve();
  }

  #schedule(): void {
    this.#turn ??= setImmediate(() => this.#run());
  }
}

function noNews(): News {
  return { renames: 0, isChanged: false, unseenSinceMs: undefined, followedBy: undefined, isAll: false };
}
