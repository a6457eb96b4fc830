// Checks the built site of the documentation.
import { readFile, readdir } from "node:fs/promises";
import { dirname, join, relative, resolve } from "node:path";

/** What a browser would load from another host. */
const LOADED = {
  html: /<(?:script|link|img|iframe|source)\b[^>]*\s(?:src|href)="(?:\w+:)?\/\//,
  css: /(?:url\(|@import )\s*["']?(?:\w+:)?\/\//,
};

/** Paths of all files below a folder. */
export async function filesIn(folder) {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  return entries
    .filter((entry) => entry.isFile())
    .map((entry) => relative(folder, join(entry.parentPath, entry.name)));
}

/** Links of the built pages that lead nowhere, and what they would load from other hosts. */
export async function faultsIn(html) {
  const names = new Set(await filesIn(html));
  const texts = new Map();
  for (const name of names)
    if (/\.(?:html|css)$/.test(name)) texts.set(name, await readFile(join(html, name), "utf8"));
  const faults = [];
  for (const [name, text] of texts) {
    if (LOADED[name.split(".").at(-1)].test(text)) faults.push(`${name} loads from another host`);
    for (const [, href] of text.matchAll(/<a\b[^>]*\shref="([^"]*)"/g)) {
      if (/^\w+:/.test(href)) continue;
      const [path, anchor = ""] = decodeURIComponent(href).split("#");
      const from = path.startsWith("/") ? html : join(html, dirname(name));
      const file = path === "" ? name : relative(html, resolve(from, path.replace(/^\//, "")));
      const target = [file, join(file, "index.html")].find((each) => names.has(each));
      if (target === undefined) faults.push(`${name}: ${href} is not there`);
      else if (anchor !== "" && texts.get(target)?.includes(` id="${anchor}"`) === false)
        faults.push(`${name}: ${href} names a part that is not there`);
    }
  }
  return faults;
}
