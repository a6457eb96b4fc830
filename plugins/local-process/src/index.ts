export { plugin as default } from "./plugin.js";
export { LocalProcessBackend, type LocalProcessSettings } from "./local-process-backend.js";
