import type { KernelProgram, InstalledKernel } from "./kernel-program.js";
import { isInstalled } from "./kernel-program.js";

/** The ways of an installed kernel's language that E2B's clients rely on. */
export interface Dialect {
  /** Code that sets a variable for all later code of the kernel. */
  readonly set: (name: string, value: string) => string;
  readonly unset: (name: string) => string;
  /** True where code gets its variables from elsewhere than the process's environment. */
  readonly hasOwnVariables: boolean;
  /** True where E2B's kernel sends the end of a line apart from its text. */
  readonly sendsLineEndsApart: boolean;
}

// Both languages know all escapes of JSON, and other characters need none.
const literal = (text: string): string => JSON.stringify(text);

const DIALECTS: ReadonlyMap<string, Dialect> = new Map([
  [
    "r",
    {
      set: (name, value) => `Sys.setenv(${literal(name)} = ${literal(value)})`,
      unset: (name) => `Sys.unsetenv(${literal(name)})`,
      hasOwnVariables: false,
      sendsLineEndsApart: false,
    },
  ],
  [
    "java",
    {
      set: (name, value) => `System.setProperty(${literal(name)}, ${literal(value)});`,
      unset: (name) => `System.clearProperty(${literal(name)});`,
      hasOwnVariables: true,
      sendsLineEndsApart: true,
    },
  ],
]);

/** Undefined for kernels of ours, which need none, and for languages that E2B does not have. */
export function dialectOf(program: KernelProgram | InstalledKernel): Dialect | undefined {
  return isInstalled(program) ? DIALECTS.get(program.language.toLowerCase()) : undefined;
}

/** Code that sets variables. */
export function settingOf({ set }: Dialect, variables: Readonly<Record<string, string>>): string {
  return Object.entries(variables)
    .map(([name, value]) => set(name, value))
    .join("\n");
}

/** Code that gives the variables with these names their values of the environment again. */
export function resettingOf(
  { set, unset }: Dialect,
  names: readonly string[],
  environment: Readonly<Record<string, string>>,
): string {
  return names
    .map((name) => {
      const value = environment[name];
      return value === undefined ? unset(name) : set(name, value);
    })
    .join("\n");
}
