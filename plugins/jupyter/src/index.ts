export { plugin as default } from "./plugin.js";
export { asciiPieces } from "./json/ascii-json.js";
export {
  CodeInterpreter,
  type InterpreterContext,
  type SandboxInterpreter,
} from "./contexts/code-interpreter.js";
export type { ExecutionEvent } from "./kernel/execution-event.js";
