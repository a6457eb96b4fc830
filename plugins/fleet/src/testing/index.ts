export * from "./open-fence.js";
export * from "./start-etcd.js";
