export { plugin as default } from "./plugin.js";
export { serviceProblems, trialProblems } from "./host-trials.js";
export { JailBackend } from "./jail-backend.js";
export { type JailSettings, jailFreebsdConfig } from "./jail-freebsd-config.js";
