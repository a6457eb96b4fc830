import "./kernel/one-core.js";
import "./http/messages/native-base64.js";
// The contract of backends is in `backend.ts`, alone.
export { BootError, SandboxError, ignoring, messageOf } from "./kernel/errors.js";
export { type DeclaredReason, declareReasons } from "./kernel/reasons.js";
export { createToken, type Token } from "./kernel/token.js";
export * from "./kernel/clock.js";
export { abortAfter, fulfilledWithin, sleep, unlessAborted, within } from "./kernel/time.js";
export { printFailure, visibleText } from "./cli/terminal.js";
export { type Inferred, Table } from "./sqlite/table.js";
export { parseJson, ValueCount } from "./kernel/parse-json.js";
export { ReadsInTurns } from "./kernel/reads-in-turns.js";
export { isTurnOver, laterTurn } from "./kernel/turns.js";
export { keptFile } from "./kernel/files.js";
export { secretEqual, digestOf, newId, uuidOf } from "./kernel/secrets.js";
export { accessTokenOf, serveSandboxPath, basicUser } from "./http/targeting/sandbox-path.js";
export { releaseMemory, HeldMemory, MemoryRoom } from "./bounds/memory-room.js";
export { holdBytes, releaseBytes } from "./bounds/held-bodies.js";
export { BoundedBytes } from "./bounds/bounded-bytes.js";
export { Spool } from "./bounds/spool.js";
export {
  definePlugin,
  type Plugin,
  type PluginContext,
  type Router,
  type VerbAction,
} from "./plugin/plugin.js";
export {
  type Guard,
  requestOf,
  targetOf,
  type RequestCarrier,
  type SurfaceRequest,
  type Principal,
  PRINCIPAL_TYPES,
  SCOPES,
} from "./http/surfaces/surface-request.js";
export {
  type WebSocket,
  type WebSocketRoute,
  CloseCode,
  sendMessage,
  takeMessages,
} from "./http/surfaces/web-sockets.js";
export type { Examination, Finding } from "./observe/finding.js";
export { Greeting } from "./observe/greeting.js";
export type { Logger } from "./observe/logger.js";
export { traced, traceHeaders, type TracedWork } from "./observe/tracing.js";
export { sandboxNotFound } from "./http/messages/edge-refusal.js";
export { paceAnswer, passBodyWhole } from "./http/clients/paced-reads.js";
export { clientOf } from "./http/clients/client-address.js";
export { isLocalClient, isLoopbackName } from "./http/clients/local-client.js";
export {
  permit,
  permits,
  requireOperator,
  requireScope,
  sandboxesOf,
  tenantOf,
} from "./http/surfaces/permit.js";
export { messageStreamOf } from "./http/messages/message-stream.js";
export { putBase64 } from "./http/messages/native-base64.js";
export { ClientCreations, parseIdempotencyKey, endUnlessClaimed } from "./http/creations/client-creations.js";
export type { ErrorBody } from "./http/surfaces/surface.js";
export { Admissions } from "./sandbox/model/admissions.js";
export { failedConnection, TargetGuard } from "./sandbox/contract/target-guard.js";
export { fairShare, severalTenants, Tenants, Shares } from "./bounds/tenants.js";
export { type TemplateFacts, Templates } from "./sandbox/templates/templates.js";
export { probePort } from "./sandbox/life/until-ready.js";
export { type CreateSandbox, Sandboxes, createdLike, Placements } from "./sandbox/life/sandboxes.js";
export { type SandboxEvent, SandboxEvents } from "./sandbox/model/sandbox-event.js";
export { DEFAULT_TENANT, TenantRecords } from "./sandbox/model/tenant-records.js";
export { WarmUps } from "./sandbox/warm/warm-ups.js";
export { Startups } from "./sandbox/life/startups.js";
export { parseTemplateReference } from "./sandbox/templates/template-reference.js";
export { factsOfEnd } from "./sandbox/model/describe-end.js";
export type { LiveSandbox, SandboxRecord } from "./sandbox/model/live-sandbox.js";
export { MEBIBYTE } from "./config/units.js";
export { Semaphore, sharedUntilFailure } from "./bounds/semaphore.js";
export { toHttpError } from "./http/messages/wire-errors.js";
export { HOP_BY_HOP } from "./http/proxy/answer-head.js";
export { ENVELOPE } from "./http/surfaces/stream-rpc.js";
export { blockReads } from "./http/proxy/block-reads.js";
export { HttpConnection, IdleConnections } from "./http/proxy/http-connection.js";
export { passRequest } from "./http/proxy/pass-request.js";
export { destroySoon, lastAnswer } from "./http/messages/last-answer.js";
export { headerLines } from "./http/messages/heads.js";
export { HttpError } from "./http/messages/http-error.js";
export {
  environmentVariables,
  queryNumber,
  parseInput,
  firstPage,
  pageFields,
} from "./http/messages/input.js";
export { bodyChunks, readJsonBody, readJsonText } from "./http/messages/json-body.js";
export {
  CODE_PORT,
  ENVD_PORT,
  ENVD_VERSION,
  type Listener,
  Listeners,
  Targets,
} from "./http/surfaces/targets.js";
export { Peers, gatherAnswers, mergedPage } from "./http/peers/peers.js";
export { SharedRecords, SharedTemplates } from "./sandbox/model/shared.js";
export { type SnapshotRecord, Snapshots } from "./sandbox/model/snapshots.js";
export { Volumes } from "./sandbox/model/volumes.js";
export { processEnvironment, sandboxEnvironment, resolveSandboxPath } from "./sandbox/model/environment.js";
export { parseSandboxId } from "./sandbox/contract/sandbox-id.js";
export * from "./config/units.js";
export { openedAtStart, openDatabase, transaction } from "./sqlite/open-database.js";
export { FairRows } from "./sqlite/fair-rows.js";
export { hostAuthorities, hostProxies } from "./boot/host-network.js";
export { Capacities } from "./sandbox/model/limits.js";
