import { readFile } from "node:fs/promises";
import type { KernelProgram } from "./kernel-program.js";

export interface PythonProgramOptions {
  /** Interpreter with ipykernel, inside the sandbox. */
  readonly python: string;
  /** Cells of a DataFrame, or points of a chart, in one result. */
  readonly maxDataCells: number;
  readonly language: "python" | "bash";
}

// What a command line cannot hold, or would show to everyone, follows on stdin. A module is compiled when
// it is imported, so what a cell does not need costs it nothing.
const BOOTSTRAP = `
import json, sys
from importlib.machinery import ModuleSpec

class Sources:
    def __init__(self, sources):
        self._sources = sources
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name in self._sources else None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        name = module.__name__
        exec(compile(self._sources[name], "<" + name + ">", "exec"), module.__dict__)

start = json.loads(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))
sys.meta_path.append(Sources(start.pop("modules")))
import coppice_launcher
coppice_launcher.run(start)
`;

const MODULES = ["launcher", "cancelling", "results", "charts", "bash"];

let modules: Promise<Readonly<Record<string, string>>> | undefined;

/** A kernel for Python or bash, on top of the ipykernel that the sandbox has. */
export function pythonProgram({ python, maxDataCells, language }: PythonProgramOptions): KernelProgram {
  return {
    path: python,
    args: ["-c", BOOTSTRAP],
    async start(key) {
      modules ??= readModules();
      return { modules: await modules, key, language, mostCells: maxDataCells };
    },
  };
}

async function readModules(): Promise<Readonly<Record<string, string>>> {
  const sources = await Promise.all(
    MODULES.map(async (name): Promise<[string, string]> => {
      const url = new URL(`../python/${name}.py`, import.meta.url);
      return [`coppice_${name}`, await readFile(url, "utf8")];
    }),
  );
  return Object.fromEntries(sources);
}
