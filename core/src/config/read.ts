import { readFileSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { isMap, isScalar, LineCounter, parseDocument, type Document, type Node, visit } from "yaml";
import { BootError, type BootProblem, messageOf } from "../kernel/errors.js";

type Path = readonly PropertyKey[];

export interface ConfigSource {
  readonly file: string;
  /** Plain values with `${env:X}` and `${file:…}` filled in. */
  readonly values: unknown;
  /** `file:line:column` of a key, or of the nearest existing key above it. */
  at(path: Path): string;
}

/**
 * Reads a YAML 1.2 configuration.
 * @param environment variables for `${env:NAME}`. `${env:NAME:-text}` falls back to the text. `${file:path}` is the
 * trimmed content of a file, relative to the configuration.
 * @throws BootError with every syntax error, duplicate key and unresolved reference at once.
 */
export function readConfig(file: string, environment: NodeJS.ProcessEnv): ConfigSource {
  let text: string;
  try {
    text = readFileSync(file, "utf8");
  } catch (error) {
    const message = `cannot read the configuration: ${messageOf(error)}`;
    throw new BootError([{ message, at: file }], { cause: error });
  }
  const lines = new LineCounter();
  const document = parseDocument(text, { lineCounter: lines, version: "1.2", uniqueKeys: true });
  const place = (offset: number): string => {
    const { line, col } = lines.linePos(offset);
    return `${file}:${line}:${col}`;
  };
  const problems: BootProblem[] = document.errors.map((error) => ({
    message: error.message.split("\n")[0]?.replace(/ at line \d+, column \d+:?$/, "") ?? error.code,
    at: place(error.pos[0]),
  }));
  visit(document, {
    Scalar(_, node) {
      if (typeof node.value !== "string") return;
      try {
        node.value = fillIn(node.value, environment, dirname(file));
      } catch (error) {
        problems.push({ message: messageOf(error), at: place(node.range?.[0] ?? 0) });
      }
    },
  });
  if (problems.length > 0) throw new BootError(problems);
  return { file, values: document.toJS() ?? {}, at: (path) => place(offsetOf(document, path)) };
}

/** A configuration made by code (tests, embedding), without line numbers. */
export function configFromValues(values: unknown, name = "configuration"): ConfigSource {
  return {
    file: name,
    values,
    at: (path) => (path.length === 0 ? name : `${name} ${path.map(String).join(".")}`),
  };
}

function fillIn(text: string, environment: NodeJS.ProcessEnv, directory: string): string {
  // As it stands, everybody would know this key or secret.
  if (/^\$\{\w+\}$/.test(text))
    throw new Error(`${text} is not filled in; write ${text.replace("{", "{env:")}`);
  return text.replace(/\$\{(env|file):([^}]*)\}/g, (whole, kind: string, argument: string) => {
    if (kind === "file") return readFileSync(resolve(directory, argument), "utf8").trim();
    const [name = "", fallback] = argument.split(/:-(.*)/s);
    const value = environment[name] ?? fallback;
    if (value === undefined)
      throw new Error(
        `${whole}: the environment variable ${name} is not set; a service has it in the EnvironmentFile of its unit, which a shell has to load`,
      );
    return value;
  });
}

function offsetOf(document: Document, path: Path): number {
  let node: unknown = document.contents;
  let offset = document.contents?.range?.[0] ?? 0;
  for (const key of path) {
    if (isMap(node)) {
      const pair = node.items.find((item) => isScalar(item.key) && item.key.value === key);
      if (pair === undefined) break;
      offset = (pair.key as Node).range?.[0] ?? offset;
      node = pair.value;
    } else if (node !== null && typeof node === "object" && "items" in node && typeof key === "number") {
      node = (node.items as readonly unknown[])[key];
      offset = (node as Node | undefined)?.range?.[0] ?? offset;
    } else break;
  }
  return offset;
}
