import { isDeepStrictEqual } from "node:util";

/** Settings that their owner lets change while the server runs. */
export interface Reloadable {
  /** Their names, with dots between them; `*` stands for any one. */
  readonly keys: readonly string[];
  /** Called after some of them have changed. */
  readonly apply?: (() => void) | undefined;
}

/** Outcome of a reload: settings by their names in the file, never their values. */
export interface Reloaded {
  readonly changed: readonly string[];
  /** Settings that differ from the file until the next start. */
  readonly restart: readonly string[];
  /** Owners that could not take their settings over, and have the old ones. */
  readonly failed: readonly { readonly plugin: string; readonly error: unknown }[];
}

/** Settings of one owner, beside those that the file has now. */
interface Compared {
  readonly owner: string;
  /** Where they are in the file. */
  readonly at: readonly string[];
  /** Changed in place: their owner reads them where it uses them. */
  readonly current: unknown;
  readonly next: unknown;
  readonly reloadables: readonly Reloadable[];
}

interface Change {
  readonly path: readonly string[];
  readonly before: unknown;
  readonly after: unknown;
  readonly reloadable: Reloadable;
}

type Settings = Record<string, unknown>;

/** Gives one owner its changed settings: all that may change, or none. */
export function reloadSettings({ owner, at, current, next, reloadables }: Compared): Reloaded {
  const changes: Change[] = [];
  const restart: string[] = [];
  const nameOf = (path: readonly string[]): string => [...at, ...path].join(".");
  const compare = (path: readonly string[], before: unknown, after: unknown): void => {
    if (isDeepStrictEqual(before, after)) return;
    const reloadable = reloadables.find(({ keys }) => keys.some((key) => matches(key, path)));
    if (reloadable !== undefined) changes.push({ path, before, after, reloadable });
    else if (isSettings(before) && isSettings(after))
      for (const key of new Set([...Object.keys(before), ...Object.keys(after)]))
        compare([...path, key], before[key], after[key]);
    else restart.push(nameOf(path));
  };
  compare([], current, next);

  const applied = new Set(changes.map(({ reloadable }) => reloadable));
  const change = (to: "before" | "after"): void => {
    for (const each of changes) put(current, each.path, each[to]);
    for (const { apply } of applied) apply?.();
  };
  const failed: { plugin: string; error: unknown }[] = [];
  try {
    change("after");
  } catch (error) {
    failed.push({ plugin: owner, error });
    try {
      change("before");
    } catch (again) {
      failed.push({ plugin: owner, error: again });
    }
  }
  return { changed: failed.length > 0 ? [] : changes.map(({ path }) => nameOf(path)), restart, failed };
}

function matches(key: string, path: readonly string[]): boolean {
  const names = key.split(".");
  return names.length === path.length && names.every((name, index) => name === "*" || name === path[index]);
}

function isSettings(value: unknown): value is Settings {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Sets what is at a path, all of whose parents are there; undefined takes it away. */
function put(settings: unknown, path: readonly string[], value: unknown): void {
  const parent = path.slice(0, -1).reduce((within, key) => (within as Settings)[key], settings) as Settings;
  const key = path.at(-1) ?? "";
  if (value === undefined) delete parent[key];
  else parent[key] = value;
}
