// Variables that the interpreter, the linker and libraries read only at their start or import.
const READ_AT_START =
  /^(PYTHON|LD_|LC_|LANG|TZ$|MALLOC_|MPL|OMP_|OPENBLAS_|GOTO_|MKL_|BLIS_|NUMEXPR_|NUMBA_)/;

/** True when a running Python can switch from one environment to another as if started with it. */
export function canGoOnWith(
  before: Readonly<Record<string, string>>,
  after: Readonly<Record<string, string>>,
): boolean {
  return [...Object.keys(before), ...Object.keys(after)].every(
    (name) => !READ_AT_START.test(name) || before[name] === after[name],
  );
}
