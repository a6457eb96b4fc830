// Writes the list of source files into docs/map.md, between its two marks: each file with the first sentence about it, or
// with the names that it exports. With --check: says when it is stale.
import { readFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { writePart } from "./generated-file.mjs";
import { ROOT } from "./toolchain/project.mjs";
import { outputOf } from "./toolchain/step.mjs";

const FILES_PART = /(?<=<!-- files: written by `npm run generate` -->\n\n)[^]*?(?=<!-- end of files -->)/;
const SOURCES = ["core", "agent", "plugins", "cli", "conformance", "bench", "scripts"];
const SOURCE = /\/(?:src|native|python|javascript|verbs|toolchain|release|ci|tests)\/.*\.(?:ts|mjs|c|py)$/;
const OTHER = /\.test\.ts$|\/(?:generated|testing)\/|\/(?:index|reasons)\.ts$/;
const COMMENT = String.raw`/\*\*((?:(?!\*/)[^])*)\*/\n`;
const DECLARATION = String.raw`export (?:default )?(?:async |abstract |declare )*(?:function\*?|class|const|let|interface|type) `;
const EXPORTED = new RegExp(`^(?:${COMMENT})?${DECLARATION}(\\w+)`, "gm");
/** Above the first line of code. */
const TOP = /^(?:#!.*\n)?((?:\/\/ .*\n)+|\/\*(?:(?!\*\/)[^])*\*\/|"""[^"]*""")/;
const MOST_NAMES = 4;

function sentenceOf(comment) {
  const text = comment
    .replace(/"""|\*\//g, "")
    .replace(/^\s*(?:\/?\*+|\/\/) ?/gm, "")
    .replace(/\s+/g, " ")
    .trim();
  const [sentence] = text.split(/(?<=\.) (?=[A-Z])| (?=@\w)/);
  return sentence.replace(/\.$/, "");
}

/** What the comment says of the export that has the file's name, or above the code; else the names of the exports. */
function about(path, text) {
  const name = basename(path)
    .replace(/\.\w+$/, "")
    .replaceAll("-", "")
    .toLowerCase();
  const exported = [...text.matchAll(EXPORTED)];
  const comment = TOP.exec(text)?.[1] ?? exported.find(([, , of]) => of.toLowerCase() === name)?.[1];
  if (comment !== undefined) return `: ${sentenceOf(comment)}`;
  const names = exported.slice(0, MOST_NAMES).map(([, , of]) => `\`${of}\``);
  return names.length > 0 ? `: ${names.join(", ")}` : "";
}

const rank = (path) => `${dirname(path)}/\0${basename(path)}`;
const paths = outputOf("git", [
  "-C",
  ROOT,
  "ls-files",
  "--cached",
  "--others",
  "--exclude-standard",
  ...SOURCES,
])
  .split("\n")
  .filter((path) => SOURCE.test(path) && !OTHER.test(path))
  .sort((one, other) => (rank(one) < rank(other) ? -1 : 1));
let room = "";
let list = "";
for (const path of paths) {
  const text = await readFile(join(ROOT, path), "utf8").catch(() => undefined);
  if (text === undefined) continue;
  if (dirname(path) !== room) {
    list += `${room === "" ? "" : "\n"}### ${dirname(path)}\n\n`;
    room = dirname(path);
  }
  list += `- \`${basename(path)}\`${about(path, text)}\n`;
}
await writePart("docs/map.md", FILES_PART, () => `${list}\n`);
