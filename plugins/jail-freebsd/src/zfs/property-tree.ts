import { setTimeout as sleep } from "node:timers/promises";
import type { Host } from "../host/host.js";

/** Values by property, for each dataset and snapshot at or below a parent. */
export type PropertyTree = ReadonlyMap<string, ReadonlyMap<string, string>>;

interface TreeOptions {
  readonly parent: string;
  readonly properties: readonly string[];
  /** True to compare the names with those of zfs list: one that is left out would count as gone. */
  readonly isCompared?: boolean;
}

const ATTEMPTS = 5;
const PAUSE_MS = 100;

/**
 * Reads properties of everything below a dataset. Properties of users are left out where they are inherited.
 * @throws HostCommandError; Error when zfs(8) ends with 0 and its output is not whole, again and again.
 */
export async function readTree(host: Host, options: TreeOptions): Promise<PropertyTree> {
  for (let attempt = 1; ; attempt++) {
    const tree = await readOnce(host, options);
    if (typeof tree !== "string") return tree;
    if (attempt === ATTEMPTS) throw new Error(`zfs get -r ${options.parent} ended with 0, but ${tree}`);
    await sleep(PAUSE_MS);
  }
}

/** @returns what is wrong with the output, where it is not whole. */
async function readOnce(host: Host, { isCompared, parent, properties }: TreeOptions) {
  const words = ["get", "-Hp", "-r", "-o", "name,property,value,source", properties.join(","), parent];
  const found = new Map<string, Map<string, string>>();
  let rows = 0;
  let odd: string | undefined;
  const onLine = (line: string) => {
    const [path = "", property = "", value, source] = line.split("\t");
    if (value === undefined || !path.startsWith(parent)) {
      odd ??= line;
      return;
    }
    // A bookmark has no properties of users.
    if (path.includes("#")) return;
    rows++;
    if (!found.has(path)) found.set(path, new Map());
    if (!property.includes(":") || isOwnValue(source)) found.get(path)?.set(property, value);
  };
  if ((await host.run("zfs", words, { onLine })) !== "") return "its last line is cut off";
  if (odd !== undefined) return `it said '${odd.slice(0, 200)}'`;
  if (!found.has(parent)) return "it left out the dataset itself";
  if (rows !== found.size * properties.length) return "it left out properties";
  if (isCompared !== true) return found;
  const names = new Set<string>();
  const list = ["list", "-H", "-r", "-t", "all", "-o", "name", parent];
  const cutOff = await host.run("zfs", list, { onLine: (name) => name.includes("#") || names.add(name) });
  if (cutOff !== "") names.add(cutOff);
  const other = [...names, ...found.keys()].find((name) => !names.has(name) || !found.has(name));
  return other === undefined ? found : `it and zfs list differ in ${other.slice(0, 200)}`;
}

/** Whether a property was set on the dataset itself, here or where `zfs receive` had it from. */
export function isOwnValue(source: string | undefined): boolean {
  return source === "local" || source === "received";
}
