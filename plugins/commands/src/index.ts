export { plugin as default } from "./plugin.js";
export {
  Commands,
  type CommandEnd,
  type CommandOutcome,
  type CommandPhase,
  type CommandSelector,
  type CommandSet,
  type LogPage,
  type LogPageRequest,
  type LogSelector,
  type LoggedCommand,
  type LoggedPiece,
  type OutputPage,
  type OutputPiece,
  type SandboxLogs,
  type StartCommand,
  type StartedCommand,
} from "./contract/commands.js";
export { bytesJson, type BytesInPieces, type BytesJsonOptions } from "./contract/page-json.js";
export { logPageQuery } from "./http/logs-routes.js";
export { withKeepalives } from "./contract/keepalive.js";
export { TextLines } from "./contract/text-lines.js";
export { pageBytes, type PageBytesOptions } from "./contract/page-json.js";
export { pageBody, pageJson, type PageJson } from "./contract/page-json.js";
