import type { FileInfo, WatchEvent } from "@coppice/core/backend";

/** What two looks at an entry are compared by. */
export interface EntryState {
  readonly sizeBytes: number;
  readonly modifiedAtMs: number;
  /** Permission bits, special ones included. */
  readonly permissions: number;
  /** The same under every name that the entry has, and of no other; undefined where the look did not tell. */
  readonly identity?: string | undefined;
}

export function stateOf(info: Pick<FileInfo, "sizeBytes" | "modifiedAtMs" | "rawMode">): EntryState {
  return {
    sizeBytes: info.sizeBytes,
    // Two readers of the same file may round what is below a millisecond in different ways.
    modifiedAtMs: Math.floor(info.modifiedAtMs),
    permissions: info.rawMode & 0o7777,
  };
}

/**
 * Turns looks at the entries of a watched tree into events: an event is a difference to the last look.
 * So whoever sees a change first reports it, and the second one to see it stays silent.
 *
 * Names are relative to the watched directory.
 */
export class ObservedEntries {
  /** Undefined: the entry is known to be there, nobody has looked at it. */
  readonly #states = new Map<string, EntryState | undefined>();
  readonly #names = new Map<string, string>();

  get size(): number {
    return this.#states.size;
  }

  /** Takes a look without an event: this is how it was before the watch began. */
  learn(name: string, state: EntryState): void {
    this.#set(name, state);
  }

  /** What the entry is known by, whatever it is called; undefined where nobody has told. */
  identityOf(name: string): string | undefined {
    return this.#states.get(name)?.identity;
  }

  /** The name under which an entry was seen last. */
  nameOf(identity: string): string | undefined {
    return this.#names.get(identity);
  }

  /** The entry is there. @param isFile directories have no WRITE: what changes them is their entries' events. */
  see(name: string, state: EntryState, isFile: boolean): readonly WatchEvent[] {
    const isNew = !this.#states.has(name);
    const before = this.#states.get(name);
    this.#set(name, state);
    if (isNew) {
      const isWritten = isFile && state.sizeBytes > 0;
      return [...this.#parentsOf(name), ...events(name, "create", ...(isWritten ? ["write" as const] : []))];
    }
    if (before === undefined) return [];
    const isChmod = before.permissions !== state.permissions;
    const isWrite =
      isFile && (before.sizeBytes !== state.sizeBytes || before.modifiedAtMs !== state.modifiedAtMs);
    return [...(isChmod ? events(name, "chmod") : []), ...(isWrite ? events(name, "write") : [])];
  }

  /** The entry is gone. */
  miss(name: string): readonly WatchEvent[] {
    return this.#delete(name) ? events(name, "remove") : [];
  }

  /** The entry is gone, and whatever was known below it: the deepest first, as it was removed. */
  missTree(name: string): readonly WatchEvent[] {
    const gone = [...this.#states.keys()].filter((known) => known === name || known.startsWith(`${name}/`));
    return gone.toSorted((a, b) => (a < b ? 1 : -1)).flatMap((each) => this.miss(each));
  }

  /**
   * The file service wrote it: what envd's create, chown and write come to, in this order. What was there before is only
   * written, unless another file has taken its place.
   */
  written(name: string, state: EntryState): readonly WatchEvent[] {
    const known = this.identityOf(name);
    const isAnother = known !== undefined && state.identity !== undefined && known !== state.identity;
    if (this.#states.has(name) && !isAnother) {
      this.#set(name, state);
      return events(name, "write");
    }
    const parents = this.#parentsOf(name);
    this.#set(name, state);
    const written = state.sizeBytes > 0 ? events(name, "write") : [];
    const [topmost = { name }] = parents;
    const owned = events(topmost.name, "chmod");
    const created = [...parents, ...events(name, "create")];
    // Of what is in a new directory nobody watches yet when it gets its owner.
    return parents.length === 0 ? [...created, ...owned, ...written] : [...created, ...written, ...owned];
  }

  /**
   * The file service made a directory, unless it was there: what envd's mkdir and chown come to.
   * @param state undefined where nobody has looked.
   */
  made(name: string, state?: EntryState): readonly WatchEvent[] {
    if (this.#states.has(name)) return state === undefined ? [] : this.see(name, state, false);
    const created = [...this.#parentsOf(name), ...events(name, "create")];
    this.#set(name, state);
    // Of those in the topmost nobody watches yet when they get their owner.
    return [...created, ...events(created[0]?.name ?? name, "chmod")];
  }

  /** It was moved, with all that is below it; either name is undefined outside of the watch. */
  moved(from: string | undefined, to: string | undefined, state: EntryState): readonly WatchEvent[] {
    if (from !== undefined) {
      for (const [name, below] of this.#states) {
        if (name !== from && !name.startsWith(`${from}/`)) continue;
        this.#delete(name);
        if (to !== undefined) this.#set(to + name.slice(from.length), below);
      }
    }
    if (to !== undefined) this.#set(to, state);
    const parents = to === undefined ? [] : this.#parentsOf(to);
    return [
      ...parents,
      ...parents.slice(0, 1).flatMap((topmost) => events(topmost.name, "chmod")),
      ...(from === undefined ? [] : events(from, "rename")),
      ...(to === undefined ? [] : events(to, "create")),
    ];
  }

  /** A look that does not tell what the entry is known by takes nothing back of what another one told. */
  #set(name: string, state: EntryState | undefined): void {
    const identity = state?.identity ?? this.identityOf(name);
    this.#delete(name);
    this.#states.set(name, state && { ...state, identity });
    if (identity !== undefined) this.#names.set(identity, name);
  }

  #delete(name: string): boolean {
    const identity = this.identityOf(name);
    if (identity !== undefined && this.#names.get(identity) === name) this.#names.delete(identity);
    return this.#states.delete(name);
  }

  /** Tells the directories above a name that nobody has told yet: a reader meets parents before children. */
  #parentsOf(name: string): readonly WatchEvent[] {
    const created: WatchEvent[] = [];
    for (let at = name.indexOf("/"); at >= 0; at = name.indexOf("/", at + 1)) {
      const parent = name.slice(0, at);
      if (this.#states.has(parent)) continue;
      this.#states.set(parent, undefined);
      created.push({ name: parent, type: "create" });
    }
    return created;
  }
}

function events(name: string, ...types: readonly WatchEvent["type"][]): readonly WatchEvent[] {
  return types.map((type) => ({ name, type }));
}
