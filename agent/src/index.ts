export { AgentConnection, type AgentConnectionOptions } from "./agent-connection.js";
export { AgentFiles, MOST_IN_PLACE_BYTES } from "./files/agent-files.js";
export { AgentProcess } from "./agent-process.js";
export { agentBinary } from "./built/agent-binary.js";
export { connectSocket } from "./connect-socket.js";
export { ProcessDescriptors } from "./built/agent-binary.js";
export type { Identity } from "./wire/spawn-request.js";
export type { ResourceName, SpawnRequest } from "./wire/spawn-request.js";
export { startHostAgent } from "./start-host-agent.js";
