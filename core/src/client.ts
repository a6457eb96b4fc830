// What the verbs of a client need of core, in an entry that loads nothing else: they start in a fraction of the time.
export { type Command, InvalidArgumentError, Option } from "@commander-js/extra-typings";
export { ignoring, messageOf, SandboxError } from "./kernel/errors.js";
export { printFailure, printLine, printTable, visibleText } from "./cli/terminal.js";
export { duration, MEBIBYTE } from "./config/units.js";
export { exitCodeOfStatus } from "./sandbox/contract/exit-report.js";
