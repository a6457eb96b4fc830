export { plugin as default } from "./plugin.js";
export {
  Commands,
  type CommandEnd,
  type CommandOutcome,
  type CommandSelector,
  type CommandSet,
  type StartCommand,
  type StartedCommand,
} from "./commands.js";
export { describeExit, type ExitReport } from "./exit-report.js";
