import { setImmediate as nextTurn } from "node:timers/promises";
import type { WatchEvent, WatchEventType } from "@coppice/core/backend";
import { type EntryState, isChanged, isChangedSinceWritten, isWritten } from "./entry-state.js";
import type { HeldName } from "./held-names.js";

/** About 1 ms. */
const RELEASED_PER_TURN = 128;

interface ObservedEntry {
  /** Undefined: the entry is known to be there, nobody has looked at it. */
  readonly state: EntryState | undefined;
  readonly held: HeldName | undefined;
  /** It is open whether what was seen when it came had been done to it there. */
  readonly isOpen: boolean;
}

/** What the file service has written. */
export interface WrittenEntry {
  readonly isEmpty: boolean;
  /** Undefined where it is gone already. */
  readonly state: EntryState | undefined;
}

/**
 * Turns looks at the entries of a watched tree into events: an event is a difference to the last look.
 * So whoever sees a change first reports it, and the second one to see it stays silent.
 *
 * Names are relative to the watched directory.
 */
export class ObservedEntries {
  readonly #entries = new Map<string, ObservedEntry>();
  readonly #names = new Map<string, string>();

  get size(): number {
    return this.#entries.size;
  }

  get names(): Iterable<string> {
    return this.#entries.keys();
  }

  has(name: string): boolean {
    return this.#entries.has(name);
  }

  stateOf(name: string): EntryState | undefined {
    return this.#entries.get(name)?.state;
  }

  /** The name under which an entry was seen last. */
  nameOf(identity: string): string | undefined {
    return this.#names.get(identity);
  }

  heldOf(name: string): HeldName | undefined {
    return this.#entries.get(name)?.held;
  }

  /** Keeps hold of a name until it is forgotten, wherever it is moved. */
  hold(name: string, held: HeldName): void {
    const entry = this.#entries.get(name);
    entry?.held?.release();
    if (entry === undefined) held.release();
    else this.#entries.set(name, { ...entry, held });
  }

  /** Takes a look without an event: this is how it was before the watch began. */
  learn(name: string, state: EntryState): void {
    this.#set(name, state);
  }

  /**
   * An entry is there that was not, or was another one.
   * @param also what has happened to it since; undefined while that is open.
   */
  appear(name: string, state: EntryState, also?: readonly WatchEventType[]): readonly WatchEvent[] {
    this.forget(name);
    const parents = this.#parentsOf(name);
    this.#set(name, state, also === undefined);
    return [...parents, ...events(name, "create", ...(also ?? []))];
  }

  /**
   * The entry that is known by this name is still there.
   * @param heard what it comes to that it is said to have changed, should that have been seen when it came; none when
   * nobody said so.
   */
  see(name: string, state: EntryState, heard: readonly WatchEventType[] = []): readonly WatchEvent[] {
    const { state: before, isOpen = false } = this.#entries.get(name) ?? {};
    const written = before && isWritten(before, state) ? events(name, "write") : [];
    const changed = before && isChanged(before, state, heard.length > 0) ? events(name, "chmod") : [];
    const differences = isChangedSinceWritten(state) ? [...written, ...changed] : [...changed, ...written];
    const isStillOpen = isOpen && differences.length === 0 && heard.length === 0;
    this.#set(name, state, isStillOpen);
    return isOpen && differences.length === 0 ? events(name, ...heard) : differences;
  }

  /** The entry is gone, and whatever was known below it: the deepest first, as it was removed. */
  missTree(name: string): readonly WatchEvent[] {
    const gone = this.#tree(name).toSorted((a, b) => (a < b ? 1 : -1));
    for (const each of gone) this.#delete(each);
    return gone.flatMap((each) => events(each, "remove"));
  }

  /** The entry was moved out of the watch, with all that is below it. */
  leave(name: string): readonly WatchEvent[] {
    const isKnown = this.has(name);
    this.forget(name);
    return isKnown ? events(name, "rename") : [];
  }

  /** Another entry has taken its place. */
  forget(name: string): void {
    for (const each of this.#tree(name)) this.#delete(each);
  }

  /**
   * The file service wrote it: what envd's create, chown and write come to, in this order. What was there before is only
   * written, unless another file has taken its place.
   */
  written(name: string, { isEmpty, state }: WrittenEntry): readonly WatchEvent[] {
    const known = this.stateOf(name)?.identity;
    const isAnother = known !== undefined && state?.identity !== undefined && known !== state.identity;
    if (this.has(name) && !isAnother) {
      this.#set(name, state);
      return events(name, "write");
    }
    const parents = this.#parentsOf(name);
    this.#set(name, state);
    const written = isEmpty ? [] : events(name, "write");
    const [topmost = { name }] = parents;
    const owned = events(topmost.name, "chmod");
    const created = [...parents, ...events(name, "create")];
    // The entries of a new directory get their owner before the directory is watched.
    return parents.length === 0 ? [...created, ...owned, ...written] : [...created, ...written, ...owned];
  }

  /**
   * The file service made a directory, unless it was there: what envd's mkdir and chown come to.
   * @param state undefined where nobody has looked.
   */
  made(name: string, state?: EntryState): readonly WatchEvent[] {
    if (this.has(name)) return state === undefined ? [] : this.see(name, state);
    const created = [...this.#parentsOf(name), ...events(name, "create")];
    this.#set(name, state);
    // Those in the topmost directory get their owner before it is watched.
    return [...created, ...events(created[0]?.name ?? name, "chmod")];
  }

  /** It was moved, with all that is below it; either name is undefined outside of the watch. */
  moved(from: string | undefined, to: string | undefined, state?: EntryState): readonly WatchEvent[] {
    if (to !== undefined) this.forget(to);
    for (const name of from === undefined ? [] : this.#tree(from)) {
      if (to === undefined) this.#delete(name);
      else this.#carry(name, to + name.slice(from?.length));
    }
    if (to !== undefined && (state !== undefined || !this.has(to))) this.#set(to, state);
    const parents = to === undefined ? [] : this.#parentsOf(to);
    return [
      ...parents,
      ...parents.slice(0, 1).flatMap((topmost) => events(topmost.name, "chmod")),
      ...(from === undefined ? [] : events(from, "rename")),
      ...(to === undefined ? [] : events(to, "create")),
    ];
  }

  /** Forgets all of them, and lets other work have its turn meanwhile. */
  async close(): Promise<void> {
    const held = [...this.#entries.values()].flatMap((entry) => entry.held ?? []);
    this.#entries.clear();
    this.#names.clear();
    while (held.length > 0) {
      for (const each of held.splice(0, RELEASED_PER_TURN)) each.release();
      await nextTurn();
    }
  }

  #tree(name: string): string[] {
    if (!this.has(name)) return [];
    const isLeaf = (this.stateOf(name)?.kind ?? "directory") !== "directory";
    if (isLeaf) return [name];
    return [...this.#entries.keys()].filter((known) => known === name || known.startsWith(`${name}/`));
  }

  #set(name: string, state: EntryState | undefined, isOpen = false): void {
    const before = this.#entries.get(name);
    const isSame = before?.state?.identity !== undefined && before.state.identity === state?.identity;
    if (!isSame) this.#delete(name);
    this.#entries.set(name, { state, held: isSame ? before.held : undefined, isOpen });
    if (state?.identity !== undefined) this.#names.set(state.identity, name);
  }

  #carry(from: string, to: string): void {
    const entry = this.#entries.get(from);
    if (entry === undefined) return;
    this.#entries.delete(from);
    this.#entries.set(to, entry);
    const identity = entry.state?.identity;
    if (identity !== undefined) this.#names.set(identity, to);
  }

  #delete(name: string): void {
    const entry = this.#entries.get(name);
    const identity = entry?.state?.identity;
    if (identity !== undefined && this.#names.get(identity) === name) this.#names.delete(identity);
    entry?.held?.release();
    this.#entries.delete(name);
  }

  /** Tells the directories above a name that nobody has told yet: a reader meets parents before children. */
  #parentsOf(name: string): readonly WatchEvent[] {
    const created: WatchEvent[] = [];
    for (let at = name.indexOf("/"); at >= 0; at = name.indexOf("/", at + 1)) {
      const parent = name.slice(0, at);
      if (this.has(parent)) continue;
      this.#entries.set(parent, { state: undefined, held: undefined, isOpen: false });
      created.push({ name: parent, type: "create" });
    }
    return created;
  }
}

function events(name: string, ...types: readonly WatchEventType[]): readonly WatchEvent[] {
  return types.map((type) => ({ name, type }));
}
