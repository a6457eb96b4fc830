export { plugin as default } from "./plugin.js";
export { sandboxApiConfig, type SandboxApiConfig } from "./sandbox-api-config.js";
