export { plugin as default } from "./plugin.js";
export { LinuxNamespacesBackend } from "./linux-namespaces-backend.js";
export type { LinuxNamespacesSettings } from "./linux-namespaces-config.js";
