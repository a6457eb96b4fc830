export { plugin as default } from "./plugin.js";
export { envdCompatConfig, type EnvdCompatConfig } from "./envd-compat-config.js";
