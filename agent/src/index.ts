export { AgentConnection, type AgentConnectionOptions } from "./agent-connection.js";
export { AgentFiles, type AgentFilesOptions, type FileChange, MOST_IN_PLACE_BYTES } from "./agent-files.js";
export { AgentProcess } from "./agent-process.js";
export { agentBinary } from "./agent-binary.js";
export type { Identity } from "./identity.js";
export type { ResourceName, SpawnRequest } from "./spawn-request.js";
export { type HostAgentOptions, startHostAgent } from "./start-host-agent.js";
