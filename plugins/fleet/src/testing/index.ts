export * from "./cordon.js";
export * from "./open-fence.js";
export * from "./record-sandboxes.js";
export * from "./start-etcd.js";
export * from "./simulated-fleet.js";
export * from "./fleet-traffic.js";
