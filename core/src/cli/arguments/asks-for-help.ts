/** Whether help is wanted in place of what a verb does. What follows `--` is somebody else's. */
export function asksForHelp(args: readonly string[]): boolean {
  const end = args.indexOf("--");
  return args.slice(0, end === -1 ? args.length : end).some((word) => word === "--help" || word === "-h");
}
