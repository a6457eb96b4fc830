/** True when the arguments ask for help. Those behind `--` belong to another program. */
export function asksForHelp(args: readonly string[]): boolean {
  const end = args.indexOf("--");
  return args.slice(0, end === -1 ? args.length : end).some((word) => word === "--help" || word === "-h");
}
