import { createRequire } from "node:module";
import { sharedUntilFailure } from "@coppice/core";
import { readTexts, type KernelProgram } from "./kernel-program.js";

interface JavascriptProgramOptions {
  readonly node: string;
  /** Limit of the content of a message. */
  readonly mostBytes: number;
  readonly language: "javascript" | "typescript";
}

const LOADER = `
const { compileFunction } = require("node:vm");
const loaded = new Map();
function load(name) {
  let module = loaded.get(name);
  if (module === undefined) {
    module = { exports: {} };
    loaded.set(name, module);
    const run = compileFunction(
      sources[name],
      ["module", "exports", "require", "load", "sources", "start", "workerSource"],
      { filename: "coppice:" + name },
    );
    run(module, module.exports, require, load, sources, start, workerSource);
  }
  return module.exports;
}
`;

const WORKER = `
const { sources } = require("node:worker_threads").workerData;
const start = undefined, workerSource = undefined;
${LOADER}
load("protocol");
`;

// In a function: its declarations would collide with the user's names.
const BOOTSTRAP = `(() => {
const input = require("node:fs").readFileSync(0);
const { sources, workerSource, ...start } = JSON.parse(input.toString("utf8", input.indexOf(10) + 1));
${LOADER}
load("kernel");
})()`;

// Stands on the first line of each cell, so that the lines of errors stay right.
const PREFIX = "await void 0;";
const MODULES = ["fitting", "kernel", "mime", "output-ring", "protocol", "source", "zmtp"];

const CODEC_EXPORTS = "module.exports = { ZmtpReader, zmtpGreeting, zmtpMessage, zmtpReady };";

/**
 * The modules, with the server's codec of ZMTP as one of them, and acorn: the sandbox may lack it. It is parsed only when
 * a cell imports something.
 */
const readSources = sharedUntilFailure(async () => {
  const { codec = "", ...sources } = await readTexts([
    ...MODULES.map((name) => [name, new URL(`../../javascript/${name}.cjs`, import.meta.url)] as const),
    ["acorn", createRequire(import.meta.url).resolve("acorn")],
    ["codec", new URL("../transport/zmtp.js", import.meta.url)],
  ]);
  // The loader takes CommonJS, and this module exports only functions and classes.
  return {
    ...sources,
    "zmtp-codec": `${codec.replaceAll(/^export (?=function|class)/gm, "")}\n${CODEC_EXPORTS}`,
  };
});

/** Node.js as a kernel: code runs in V8's REPL mode. The sandbox needs Node.js 20 or newer, for TypeScript 22.13. */
export function javascriptProgram({ node, ...options }: JavascriptProgramOptions): KernelProgram {
  return {
    path: node,
    // An interrupt also ends timers' callbacks; without the first flag it would end the process. Imports in cells are
    // experimental in Node, which would warn on the first one's stderr.
    args: ["--no-force-async-hooks-checks", "--disable-warning=ExperimentalWarning", "-e", BOOTSTRAP],
    async start(key) {
      return { sources: await readSources(), workerSource: WORKER, prefix: PREFIX, key, ...options };
    },
  };
}
