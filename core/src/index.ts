import "./http/messages/native-base64.js";
// The contract of backends is in `backend.ts`, alone.
export { BootError, SandboxError, ignoring, messageOf } from "./kernel/errors.js";
export { type DeclaredReason, declareReasons } from "./kernel/reasons.js";
export { createToken, type Token } from "./kernel/token.js";
export * from "./kernel/clock.js";
export { abortAfter, fulfilledWithin, sleep, unlessAborted, within } from "./kernel/time.js";
export { printFailure } from "./cli/terminal/print-failure.js";
export { visibleText } from "./cli/terminal/visible-text.js";
export type { Inferred } from "./sqlite/inferred.js";
export { parseJson, ValueCount } from "./kernel/parse-json.js";
export { ReadsInTurns } from "./kernel/reads-in-turns.js";
export { isTurnOver, laterTurn } from "./kernel/turns.js";
export { keptFile } from "./kernel/replace-file.js";
export { secretEqual } from "./kernel/secret-equal.js";
export { accessTokenOf, serveSandboxPath } from "./http/targeting/sandbox-path.js";
export { digestOf, newId } from "./sandbox/backends/sandbox-secrets.js";
export { releaseMemory } from "./release-memory.js";
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
export type { Guard } from "./http/surfaces/surface-hooks.js";
export type { WebSocket, WebSocketRoute } from "./http/surfaces/web-sockets.js";
export { CloseCode, sendMessage, takeMessages } from "./http/surfaces/web-socket-messages.js";
export type { Examination, Finding } from "./observe/finding.js";
export { Greeting } from "./observe/greeting.js";
export type { Logger } from "./observe/logger.js";
export {
  requestOf,
  targetOf,
  type RequestCarrier,
  type SurfaceRequest,
} from "./http/surfaces/surface-request.js";
export { sandboxNotFound } from "./http/messages/edge-refusal.js";
export { paceReads, passBodyWhole } from "./http/clients/paced-reads.js";
export { joinChunks } from "./http/messages/join-chunks.js";
export { clientOf } from "./http/clients/client-address.js";
export { isLocalClient, isLoopbackName } from "./http/clients/local-client.js";
export { permit, permits, requireScope } from "./http/surfaces/permit.js";
export { type Principal, PRINCIPAL_TYPES, SCOPES } from "./http/surfaces/principal.js";
export { messageStreamOf } from "./http/messages/message-stream.js";
export { putBase64 } from "./http/messages/put-base64.js";
export { ClientCreations } from "./http/creations/client-creations.js";
export { endUnlessClaimed } from "./http/creations/claimed.js";
export { sandboxesOf, tenantOf } from "./http/surfaces/tenant-of.js";
export type { ErrorBody } from "./http/surfaces/surface.js";
export { Admissions } from "./sandbox/model/admissions.js";
export { failedConnection } from "./sandbox/contract/failed-connection.js";
export { fairShare } from "./bounds/fair-share.js";
export { HeldMemory, MemoryRoom } from "./bounds/memory-room.js";
export { Shares } from "./bounds/shares.js";
export { severalTenants, Tenants } from "./bounds/tenants.js";
export { TargetGuard } from "./sandbox/contract/target-guard.js";
export { type TemplateFacts, Templates } from "./sandbox/templates/templates.js";
export { probePort } from "./sandbox/life/probe-port.js";
export { type CreateSandbox, Sandboxes } from "./sandbox/life/sandboxes.js";
export { endEventId, type SandboxEvent } from "./sandbox/model/sandbox-event.js";
export { SandboxEvents } from "./sandbox/model/sandbox-events.js";
export { DEFAULT_TENANT } from "./sandbox/model/tenant.js";
export { WarmUps } from "./sandbox/warm/warm-ups.js";
export { Startups } from "./sandbox/life/startups.js";
export { parseTemplateName, parseTemplateReference } from "./sandbox/templates/template-reference.js";
export { factsOfEnd } from "./sandbox/model/describe-end.js";
export type { LiveSandbox, SandboxRecord } from "./sandbox/model/live-sandbox.js";
export { MEBIBYTE } from "./config/units.js";
export { Semaphore } from "./bounds/semaphore.js";
export { sharedUntilFailure } from "./kernel/shared-until-failure.js";
export { basicUser } from "./http/clients/basic-user.js";
export { toHttpError } from "./http/messages/wire-errors.js";
export { HOP_BY_HOP } from "./http/proxy/answer-head.js";
export { ENVELOPE } from "./http/surfaces/stream-rpc.js";
export { blockReads } from "./http/proxy/block-reads.js";
export { HttpConnection } from "./http/proxy/http-connection.js";
export { IdleConnections } from "./http/proxy/idle-connections.js";
export { passRequest } from "./http/proxy/pass-request.js";
export { lastAnswer } from "./http/messages/last-answer.js";
export { headerLines } from "./http/messages/header-lines.js";
export { HttpError } from "./http/messages/http-error.js";
export { environmentVariables } from "./http/messages/environment-variables.js";
export { parseIdempotencyKey } from "./http/creations/idempotency-key.js";
export { queryNumber } from "./http/messages/query-number.js";
export { firstPage, pageFields } from "./http/messages/page.js";
export { parseInput } from "./http/messages/parse-input.js";
export { readJsonBody, readJsonText } from "./http/messages/json-body.js";
export {
  CODE_PORT,
  ENVD_PORT,
  ENVD_VERSION,
  type Listener,
  Listeners,
  Targets,
} from "./http/surfaces/targets.js";
export { Peers } from "./http/peers/peers.js";
export { gatherAnswers, mergedPage } from "./http/peers/gather-answers.js";
export { createdLike } from "./sandbox/life/created-like.js";
export { Placements } from "./sandbox/life/placements.js";
export { SharedRecords } from "./sandbox/model/shared-records.js";
export { TenantRecords } from "./sandbox/model/tenant-records.js";
export { uuidOf } from "./kernel/uuid-of.js";
export { SharedTemplates } from "./sandbox/model/shared-templates.js";
export { type SnapshotRecord, Snapshots } from "./sandbox/model/snapshots.js";
export { Volumes } from "./sandbox/model/volumes.js";
export { processEnvironment, sandboxEnvironment } from "./sandbox/model/environment.js";
export { parseSandboxId } from "./sandbox/contract/parse-sandbox-id.js";
export { resolveSandboxPath } from "./sandbox/contract/sandbox-path.js";
export * from "./config/units.js";
export { openedAtStart } from "./sqlite/opened-at-start.js";
export { FairRows } from "./sqlite/fair-rows.js";
export { openDatabase } from "./sqlite/open-database.js";
export { Table } from "./sqlite/table.js";
export { transaction } from "./sqlite/transaction.js";
export { hostAuthorities } from "./boot/host-authorities.js";
export { hostProxies } from "./boot/host-proxies.js";
export { Capacities } from "./sandbox/model/capacity.js";
