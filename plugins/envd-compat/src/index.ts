export { plugin as default } from "./plugin.js";
export { EnvdCompatConfig } from "./envd-compat-config.js";
