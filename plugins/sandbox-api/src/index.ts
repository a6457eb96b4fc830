export { plugin as default } from "./plugin.js";
export { SandboxApiConfig } from "./sandbox-api-config.js";
