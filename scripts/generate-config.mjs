// Writes config/default.yaml (every key with its default) and config/schema.json (for editors) from the
// zod schemas, which are the one place where settings are described. With --check: says which is stale.
// Runs on the compiled code, under the Node that set-up chose.
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { stringify } from "yaml";
import { z } from "zod";
import { writeGenerated } from "./generated-file.mjs";
import { ROOT } from "./toolchain/project.mjs";

const LINE_WIDTH = 110;

/** Where a key is a name of the operator's choosing, the names that the manual shows. */
const SHOWN = {
  listeners: { api: { port: 3000 }, envd: { port: 49983 }, code: { port: 49999 }, ops: { port: 9464 } },
};

const HEADER = `\
# Every key there is, with its default and what it means: the operator's manual. Generated from the code
# by \`npm run generate\`; \`npm test\` fails when it is stale.
#
# A key that is commented out has no default. Lengths of time: 250ms, 30s, 5m, 24h, 7d. Sizes: 64KiB,
# 16MiB, 10GiB. \${env:NAME}, \${env:NAME:-fallback} and \${file:path} are filled in anywhere in a value.
# An unknown key is an error. \`npx --no -- coppice check <file>\` checks a configuration without serving it.
`;

async function load(path) {
  return import(pathToFileURL(join(ROOT, path)).href);
}

function toJsonSchema(schema) {
  return z.toJSONSchema(schema, { io: "input", unrepresentable: "any" });
}

/** The settings of every plugin in the tree, by the key that switches it on. */
async function pluginSchemas() {
  const names = (await readdir(join(ROOT, "plugins"))).sort();
  const loaded = await Promise.all(
    names.map(async (name) => [
      name,
      toJsonSchema((await load(`plugins/${name}/dist/index.js`)).default.config),
    ]),
  );
  return Object.fromEntries(loaded);
}

function comment(schema) {
  const choices = schema.enum === undefined ? "" : ` (${schema.enum.join(" | ")})`;
  // Plugins differ in how they write their one line; here they stand side by side.
  const text = (schema.description ?? "")
    .replace(/\.$/, "")
    .replace(/^[A-Z](?=[a-z ])/, (letter) => letter.toLowerCase());
  return `${text}${choices}`.trim();
}

/** Words in lines that start with `prefix` and stay within the width. */
function wrap(text, prefix) {
  const lines = [];
  for (const word of text.split(" ")) {
    const last = lines.at(-1);
    if (last !== undefined && `${last} ${word}`.length <= LINE_WIDTH)
      lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(`${prefix}${word}`);
  }
  return lines;
}

/** A key with its value, and its comment beside it where there is room, else above it. */
function entry(text, note, lead) {
  if (note === "") return [text];
  const line = `${text} # ${note}`;
  return line.length <= LINE_WIDTH ? [line] : [...wrap(note, lead.includes("#") ? lead : `${lead}# `), text];
}

function flow(value) {
  return stringify(value, { collectionStyle: "flow", lineWidth: 0 }).trim();
}

/** Placeholder for a value that has no default. */
function placeholder(schema) {
  if (schema.enum !== undefined) return schema.enum[0];
  return { integer: "1", number: "1", boolean: "false", array: "[]", object: "{}" }[schema.type] ?? "…";
}

/**
 * Lines of an object's keys.
 * @param given values that the manual shows in place of defaults.
 * @param lead start of each line: the indentation, and `# ` inside a comment.
 */
function properties(schema, { lead, given = {} }) {
  const isCommented = lead.includes("#");
  return Object.entries(schema.properties ?? {}).flatMap(([key, property]) => {
    const value = given[key] ?? property.default;
    const note = comment(property);
    const absent = isCommented ? lead : `${lead}# `;
    if (property.properties !== undefined) {
      const start = value === undefined ? absent : lead;
      const inner = properties(property, { lead: `${start}  `, given: value ?? {} });
      return [
        ...entry(`${start}${key}:${isEmpty(inner) && !start.includes("#") ? " {}" : ""}`, note, lead),
        ...inner,
      ];
    }
    if (property.additionalProperties?.properties !== undefined && value !== undefined) {
      return [
        ...entry(`${lead}${key}:`, note, lead),
        ...named(property.additionalProperties, value, `${lead}  `),
      ];
    }
    if (value !== undefined) return entry(`${lead}${key}: ${flow(value)}`, note, lead);
    return entry(`${absent}${key}: ${placeholder(property)}`, note, lead);
  });
}

/** True when all keys of an object are commented out: YAML would read nothing as null. */
function isEmpty(lines) {
  return lines.every((line) => line.trimStart().startsWith("#"));
}

/** Lines of a map whose keys are names: the first entry with every key, the others in short form. */
function named(schema, entries, indent) {
  return Object.entries(entries).flatMap(([name, given], index) => {
    if (index > 0) return [`${indent}${name}: ${flow(given)}`];
    const inner = properties(schema, { lead: `${indent}  `, given });
    return [`${indent}${name}:${isEmpty(inner) ? " {}" : ""}`, ...inner];
  });
}

function defaultYaml(server, plugins) {
  const { plugins: pluginsKey, ...rest } = server.properties;
  const lines = Object.entries(rest).flatMap(([key, property]) => [
    "",
    ...properties({ properties: { [key]: property } }, { lead: "", given: SHOWN }),
  ]);
  const sections = Object.entries(plugins).flatMap(([name, schema]) => {
    const inner = properties(schema, { lead: "    " });
    return ["", `  ${name}:${isEmpty(inner) ? " {}" : ""}`, ...inner];
  });
  return `${HEADER}${lines.join("\n")}\n\n# ${comment(pluginsKey)}\nplugins:${sections.join("\n")}\n`;
}

function schemaJson(server, plugins) {
  const schema = {
    ...server,
    title: "Coppice server configuration",
    properties: {
      ...server.properties,
      plugins: {
        ...server.properties.plugins,
        properties: Object.fromEntries(
          Object.entries(plugins).map(([name, plugin]) => [name, { ...plugin, $schema: undefined }]),
        ),
      },
    },
  };
  return `${JSON.stringify(schema, undefined, 2)}\n`;
}

const { serverConfig } = await load("core/dist/boot/server-schema.js");
const server = toJsonSchema(serverConfig);
const plugins = await pluginSchemas();
const files = {
  "config/default.yaml": defaultYaml(server, plugins),
  "config/schema.json": schemaJson(server, plugins),
};
for (const [path, text] of Object.entries(files)) await writeGenerated(path, text);
