// Pages of the site that are made of other files: the settings, of their schema, and the interfaces for plugins, of the
// doc comments.
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { CompilerState, Extractor, ExtractorConfig } from "@microsoft/api-extractor";
import { markdownTable } from "./generated-file.mjs";
import { ROOT } from "./toolchain/project.mjs";

/** Entries for plugins and their tests, by the page of each. */
const ENTRIES = {
  "api-core": { config: "core/api-extractor.json", title: "`@coppice/core`" },
  "api-core-testing": { config: "core/api-extractor.testing.json", title: "`@coppice/core/testing`" },
  "api-conformance": { config: "conformance/api-extractor.json", title: "`@coppice/conformance`" },
};

function kindOf({ anyOf, oneOf, ...schema }) {
  const values = schema.const === undefined ? schema.enum : [schema.const];
  if (values !== undefined) return values.map((value) => `\`${value}\``).join(", ");
  return [...new Set((anyOf ?? oneOf)?.map(kindOf) ?? [schema.type ?? ""].flat())].join(" or ");
}

/** Schemas below a schema, each with its path; those of unnamed values only where they are described. */
function innerSchemas({ properties = {}, additionalProperties, items, anyOf, oneOf }, path) {
  const unnamed = [
    [`${path}.<name>`, additionalProperties],
    [`${path}[]`, items],
  ].filter(([, value]) => value?.properties ?? value?.description ?? value?.anyOf ?? value?.oneOf);
  return [
    ...Object.entries(properties).map(([key, value]) => [path === "" ? key : `${path}.${key}`, value]),
    ...unnamed,
    ...(anyOf ?? oneOf ?? []).flatMap((value) =>
      value.description === undefined ? innerSchemas(value, path) : [[path, value]],
    ),
  ];
}

/** Rows of a table: each setting with its kind, its default and its description. */
function settingRows(schema, path) {
  return innerSchemas(schema, path).flatMap(([name, value]) => {
    const preset =
      value.default === undefined ? "" : `\`${JSON.stringify(value.default).replace(/^"(.*)"$/, "$1")}\``;
    const row = [`\`${name}\``, kindOf(value), preset, value.description ?? ""];
    return [row.map((cell) => cell.replaceAll("|", "\\|")), ...settingRows(value, name)];
  });
}

const table = (rows) => markdownTable(["setting", "kind", "default", "meaning"], rows);

/** Every setting of the server and of the plugins of the repository. */
export async function settingsPage() {
  const schema = JSON.parse(await readFile(join(ROOT, "config/schema.json"), "utf8"));
  const { plugins, ...server } = schema.properties;
  const sections = Object.entries(plugins.properties).map(([name, plugin]) => {
    const rows = settingRows(plugin, "");
    return `## Plugin ${name}\n\n${rows.length === 0 ? "It has no settings.\n" : table(rows)}`;
  });
  return `# Settings

Every setting with its default, as the server reads it. A setting of a plugin stands below \`plugins.<its name>\`. Lengths
of time: \`250ms\`, \`30s\`, \`5m\`, \`24h\`, \`7d\`. Sizes: \`64KiB\`, \`16MiB\`, \`10GiB\`. An unknown key is an error.
[default.yaml](../config/default.yaml) has the same as a configuration, [schema.json](../config/schema.json) for editors.

Which plugins: ${plugins.description}.

## Server

${table(settingRows({ properties: server }, ""))}
${sections.join("\n")}`;
}

/** The text of a doc comment. */
function commentOf({ docComment = "" }) {
  return docComment
    .replace(/^\/\*\*|\*\/\s*$/g, "")
    .replace(/^[ \t]*\* ?/gm, "")
    .replace(/@public|@packageDocumentation/g, "")
    .replace(/\{@link ([^}|]+?)(?:\s*\|[^}]*)?\}/g, "`$1`")
    .trim();
}

const declarationOf = ({ excerptTokens = [] }) =>
  excerptTokens
    .map(({ text }) => text)
    .join("")
    .trim();
const indented = (text) => text.replace(/^(?=.)/gm, "  ");

/** A declaration with the comments of its members. */
function sourceOf(item) {
  const members = (item.members ?? []).map((member) => {
    const comment = commentOf(member);
    const lines = comment === "" ? "" : `/** ${comment.replace(/\n/g, "\n * ")} */\n`;
    return indented(`${lines}${declarationOf(member).replace(/;?$/, ";")}`);
  });
  return members.length === 0 ? declarationOf(item) : `${declarationOf(item)} {\n${members.join("\n")}\n}`;
}

function itemSection([name, items]) {
  const [first = "", ...tags] = items
    .map(commentOf)
    .join("\n\n")
    .trim()
    .split(/^(?=@(?:param|returns|throws|beta))/m);
  const list = tags
    .map(
      (tag) =>
        `- ${tag
          .trim()
          .replace(/^@(\w+) ?/, "**$1** ")
          .replace(/\n+/g, " ")}\n`,
    )
    .join("");
  const code = `\`\`\`ts\n${items.map(sourceOf).join("\n\n")}\n\`\`\`\n`;
  return [`## ${name}`, first.trim(), list.trim(), code].filter(Boolean).join("\n\n");
}

/** A page for each entry. @returns pairs of a name and the text. */
export async function apiPages(folder) {
  await mkdir(folder, { recursive: true });
  const entries = Object.entries(ENTRIES).map(([page, { config, title }]) => {
    const configObjectFullPath = join(ROOT, config);
    const apiJsonFilePath = join(folder, `${page}.json`);
    const configObject = ExtractorConfig.loadFile(configObjectFullPath);
    configObject.docModel = { enabled: true, apiJsonFilePath };
    const packageJsonFullPath = join(configObjectFullPath, "../package.json");
    const prepared = ExtractorConfig.prepare({ configObject, configObjectFullPath, packageJsonFullPath });
    return { page, title, prepared, apiJsonFilePath };
  });
  // One program for all: reading the declarations is most of the time.
  const compilerState = CompilerState.create(entries[0].prepared, {
    additionalEntryPoints: entries.map(({ prepared }) => prepared.mainEntryPointFilePath),
  });
  const pages = entries.map(async ({ page, title, prepared, apiJsonFilePath }) => {
    // `npm run lint` has its messages.
    Extractor.invoke(prepared, { compilerState, messageCallback: (message) => (message.handled = true) });
    const { members } = JSON.parse(await readFile(apiJsonFilePath, "utf8"));
    const items = Map.groupBy(members[0].members, ({ name }) => name);
    const text = `What a plugin imports from ${title}, with the comments of its source.`;
    return [page, `# ${title}\n\n${text}\n\n${[...items].map(itemSection).join("\n")}`];
  });
  return Promise.all(pages);
}
