"use strict";
// Prepares a user's code for V8's REPL mode, which has top-level await and allows repeated declarations. Line numbers
// stay the same. It strips types and rewrites imports, because code in that mode cannot import by itself.
const { stripTypeScriptTypes } = require("node:module");
const { Script } = require("node:vm");

/** @param {() => typeof import("acorn")} acorn */
function sourceReader(acorn) {
  /** JavaScript for V8. Invalid code is returned unchanged, and V8 reports its error. */
  return function read(code, language) {
    let script = code;
    if (language === "typescript" || !isScript(code)) script = withoutTypes(code) ?? code;
    return /\b(?:import|export)\b/.test(script) ? (withoutModules(script, acorn()) ?? script) : script;
  };
}

// Compiled, not run. Inside of a function, because only there await is allowed in a script.
function isScript(code) {
  try {
    new Script(`(async () => {${code}\n})`);
    return true;
  } catch {
    return false;
  }
}

function withoutTypes(code) {
  if (stripTypeScriptTypes === undefined) return undefined;
  for (const mode of ["strip", "transform"]) {
    try {
      return stripTypeScriptTypes(code, { mode });
    } catch {
      // Enums and namespaces need the second one, which moves lines; invalid code fails in both.
    }
  }
  return undefined;
}

function withoutModules(code, { parse }) {
  let program;
  try {
    program = parse(code, {
      ecmaVersion: "latest",
      sourceType: "module",
      allowAwaitOutsideFunction: true,
      allowReturnOutsideFunction: true,
      allowHashBang: true,
    });
  } catch {
    return undefined;
  }
  const edits = [];
  const replace = ({ start, end }, text) => edits.push({ start, end, text });
  for (const node of program.body) {
    if (node.type === "ImportDeclaration") replace(node, importing(node) + blankLines(code, node));
    else if (node.type === "ExportNamedDeclaration" || node.type === "ExportDefaultDeclaration") {
      // Exports of a cell have no importer.
      if (node.declaration) replace({ start: node.start, end: node.declaration.start }, "");
      else replace(node, blankLines(code, node));
    }
  }
  walk(program, (node) => {
    if (node.type === "ImportExpression") replace({ start: node.start, end: node.start + 6 }, "__import");
    if (node.type === "MetaProperty" && node.meta.name === "import") replace(node, "__importMeta()");
  });
  let text = code;
  for (const { start, end, text: replacement } of edits.sort((one, other) => other.start - one.start)) {
    text = text.slice(0, start) + replacement + text.slice(end);
  }
  return text;
}

function importing({ specifiers, source, attributes = [] }) {
  const options = attributes.map(
    ({ key, value }) => `${JSON.stringify(key.name ?? key.value)}: ${value.raw}`,
  );
  const call = `await __import(${source.raw}${options.length > 0 ? `, { with: { ${options.join(", ")} } }` : ""})`;
  const names = [];
  let whole;
  for (const { type, local, imported } of specifiers) {
    if (type === "ImportNamespaceSpecifier") whole = local.name;
    else if (type === "ImportDefaultSpecifier") names.push(`default: ${local.name}`);
    else names.push(`${imported.name ?? imported.raw}: ${local.name}`);
  }
  if (whole === undefined && names.length === 0) return `${call};`;
  const from = whole === undefined ? call : `${whole}`;
  const first = whole === undefined ? "" : `const ${whole} = ${call};`;
  return first + (names.length > 0 ? `const { ${names.join(", ")} } = ${from};` : "");
}

function blankLines(code, { start, end }) {
  return "\n".repeat(code.slice(start, end).split("\n").length - 1);
}

function walk(node, visit) {
  const waiting = [node];
  for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
    if (typeof next.type === "string") visit(next);
    for (const value of Object.values(next)) {
      if (typeof value === "object" && value !== null) waiting.push(value);
    }
  }
}

module.exports = { sourceReader };
