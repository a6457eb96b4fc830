import { readFileSync } from "node:fs";
import { sharedUntilFailure } from "@coppice/core";
import { type KernelProgram, readTexts, type ZygoteAddress } from "./kernel-program.js";

interface PythonProgramOptions {
  readonly python: string;
  /** Cells of a DataFrame, or points of a chart, in one result. */
  readonly maxDataCells: number;
  /** Limit of the content of a message. */
  readonly mostBytes: number;
  readonly language: "python" | "bash";
}

interface ZygoteProgramOptions {
  readonly python: string;
  /** Modules to import in addition to a kernel's own. */
  readonly imports: readonly string[];
  readonly name: string;
}

// The program follows on stdin: a command line is limited in size and visible to everyone. Modules are compiled when
// they are imported, so unused ones cost nothing. The start folder is the user's, whose json.py must not replace the
// library's. IPython adds the folder again, behind the standard library, as in every Jupyter kernel.
const BOOTSTRAP = `
import sys
sys.path[:] = [place for place in sys.path if place]
import importlib, json
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
importlib.import_module(start.pop("main")).run(start)
`;

const MODULES = ["launcher", "cancelling", "debugging", "fitting", "results", "charts", "bash", "zygote"];

const readModules = sharedUntilFailure(() =>
  readTexts(
    MODULES.map((name) => [`coppice_${name}`, new URL(`../../python/${name}.py`, import.meta.url)] as const),
  ),
);
// Small enough for a command line: reading it from stdin would need a JSON parser.
const FORK = readFileSync(new URL("../../python/fork.py", import.meta.url), "utf8");

/** A kernel for Python or bash, on top of the sandbox's ipykernel. */
export function pythonProgram(options: PythonProgramOptions): KernelProgram {
  const { python } = options;
  return {
    path: python,
    args: ["-c", BOOTSTRAP],
    async start(key) {
      return { main: "coppice_launcher", modules: await readModules(), key, ...startOf(options) };
    },
    forkedFrom: (zygote) => forkProgram(options, zygote),
  };
}

/** The zygote, a process that forks Python and bash kernels. Its clients authenticate with the key. */
export function zygoteProgram({ python, imports, name }: ZygoteProgramOptions): KernelProgram {
  return {
    path: python,
    args: ["-c", BOOTSTRAP],
    async start(key) {
      return { main: "coppice_zygote", modules: await readModules(), secret: key, imports, name };
    },
  };
}

function forkProgram(options: PythonProgramOptions, { name, secret }: ZygoteAddress): KernelProgram {
  const { python } = options;
  return {
    path: python,
    // Without site-packages it starts in a fifth of the time.
    args: ["-I", "-S", "-c", FORK, name],
    start: async (key) => ({ secret, key, ...startOf(options) }),
  };
}

/** Arguments of the launcher's `run`, except for the key. */
function startOf({ language, maxDataCells, mostBytes }: PythonProgramOptions): object {
  return { language, mostCells: maxDataCells, mostBytes };
}
