import "./http/messages/native-base64.js";
export { BootError, SandboxError, messageOf, type BootProblem, type Shortage } from "./kernel/errors.js";
export { createToken, tokenName, type Token } from "./kernel/token.js";
export { inject, injectable, type Class } from "./kernel/scope.js";
export * from "./kernel/clock.js";
export * from "./kernel/time.js";
export { printFailure } from "./cli/terminal/print-failure.js";
export { visibleText } from "./cli/terminal/visible-text.js";
export { parseJson, TooManyValues } from "./kernel/parse-json.js";
export { secretEqual } from "./kernel/secret-equal.js";
export { digestOf, newId } from "./sandbox/backends/sandbox-secrets.js";
export { releaseMemory } from "./release-memory.js";
export { Spool, type SpoolFile, type SpoolOptions } from "./kernel/spool.js";
export {
  definePlugin,
  type Plugin,
  type PluginContext,
  type PluginDefinition,
  type Resolved,
  type ResolvedIfProvided,
  type Router,
  type VerbAction,
  type ServerClient,
  type ServerRequest,
  type VerbContext,
  type Verbs,
} from "./plugin/plugin.js";
export type * from "./http/surfaces/surface-hooks.js";
export type { Diagnosis, Examination, Finding } from "./observe/finding.js";
export type { HealthCheck, HealthDetails } from "./observe/health.js";
export { Greeting } from "./observe/greeting.js";
export type { Logger } from "./observe/logger.js";
export {
  noteSandbox,
  requestOf,
  targetOf,
  type RequestCarrier,
  type SurfaceRequest,
  type Target,
} from "./http/surfaces/surface-request.js";
export { sandboxNotFound } from "./http/messages/edge-refusal.js";
export { clientOf } from "./http/clients/client-address.js";
export { isLocalClient, isSameOrigin } from "./http/clients/local-client.js";
export { permit, requireScope } from "./http/surfaces/permit.js";
export * from "./http/surfaces/principal.js";
export { type MessageStream, messageStreamOf } from "./http/messages/message-stream.js";
export { putBase64 } from "./http/messages/put-base64.js";
export * from "./http/creations/client-creations.js";
export { endUnlessClaimed, type Waiting } from "./http/creations/claimed.js";
export { sandboxesOf, tenantOf } from "./http/surfaces/tenant-of.js";
export type { ErrorBody, RouterOptions, ServedRoute } from "./http/surfaces/surface.js";
export * from "./sandbox/model/admissions.js";
export type { NetworkPolicy } from "./sandbox/contract/egress-rules.js";
export { TargetGuard } from "./sandbox/contract/target-guard.js";
export * from "./sandbox/templates/templates.js";
export type * from "./sandbox/model/template-build.js";
export type { HttpProbe, ReadinessProbe, ShellProbe, TcpProbe } from "./sandbox/model/readiness-probe.js";
export type { LimitsChange } from "./sandbox/model/requested-limits.js";
export { probePort, type ProbedPort } from "./sandbox/life/probe-port.js";
export * from "./sandbox/life/sandboxes.js";
export * from "./sandbox/model/sandbox-event.js";
export * from "./sandbox/model/sandbox-events.js";
export { DEFAULT_TENANT } from "./sandbox/model/tenant.js";
export { WarmUps, type WarmUp } from "./sandbox/warm/warm-ups.js";
export { Startups, type Startup } from "./sandbox/life/startups.js";
export {
  parseTemplateName,
  parseTemplateReference,
  type TemplateReference,
} from "./sandbox/templates/template-reference.js";
export type {
  EndReason,
  LiveSandbox,
  OnTimeout,
  SandboxRecord,
  SandboxState,
} from "./sandbox/model/live-sandbox.js";
export * from "./backend.js";
export { basicUser } from "./http/clients/basic-user.js";
export { toHttpError } from "./http/messages/wire-errors.js";
export { type AnswerHead, HOP_BY_HOP } from "./http/proxy/answer-head.js";
export type { AnswerSink } from "./http/proxy/answer-reader.js";
export { END_STREAM, envelope, HEAD_BYTES as ENVELOPE_HEAD_BYTES } from "./http/surfaces/stream-rpc.js";
export { blockReads } from "./http/proxy/block-reads.js";
export * from "./http/proxy/http-connection.js";
export * from "./http/proxy/idle-connections.js";
export * from "./http/proxy/pass-request.js";
export { lastAnswer } from "./http/proxy/proxy-upgrade.js";
export { headerLines } from "./http/messages/header-lines.js";
export { HttpError, type HttpErrorOptions, withReason } from "./http/messages/http-error.js";
export * from "./http/clients/sandbox-sockets.js";
export { environmentVariables } from "./http/messages/environment-variables.js";
export { parseIdempotencyKey } from "./http/messages/idempotency-key.js";
export { queryNumber } from "./http/messages/query-number.js";
export * from "./http/messages/page.js";
export { parseInput } from "./http/messages/parse-input.js";
export * from "./http/messages/json-body.js";
export * from "./http/surfaces/targets.js";
export type { HeldName, Holding } from "./http/peers/holdings.js";
export { type Arrival, type Gathered, type PeerFinder, Peers } from "./http/peers/peers.js";
export { gatherAnswers, mergedPage } from "./http/peers/gather-answers.js";
export type { Peer } from "./http/surfaces/peer.js";
export { createdLike } from "./sandbox/life/created-like.js";
export { type Placement, Placements } from "./sandbox/life/placements.js";
export { type Reservation, type SharedRecord, SharedRecords } from "./sandbox/model/shared-records.js";
export {
  type CommonRecords,
  type RecordFollower,
  type RecordSource,
  type TenantRecord,
  TenantRecords,
} from "./sandbox/model/tenant-records.js";
export { uuidOf } from "./kernel/uuid-of.js";
export {
  type SharedTemplate,
  SharedTemplates,
  type SnapshotLoan,
  type TemplateRecords,
} from "./sandbox/model/shared-templates.js";
export * from "./sandbox/contract/address-leases.js";
export * from "./sandbox/ledger/ledger.js";
export * from "./sandbox/model/snapshots.js";
export * from "./sandbox/model/volumes.js";
export type { RecordedMount, RequestedMount } from "./sandbox/model/volume-mounts.js";
export { processEnvironment, sandboxEnvironment } from "./sandbox/model/environment.js";
export { parseSandboxId } from "./sandbox/contract/parse-sandbox-id.js";
export { resolveSandboxPath } from "./sandbox/contract/sandbox-path.js";
export * from "./config/units.js";
export { openedAtStart } from "./sqlite/opened-at-start.js";
export { openDatabase, type DatabaseOptions } from "./sqlite/open-database.js";
export { transaction } from "./sqlite/transaction.js";
export { boot, type BootOptions, type Server } from "./boot/boot.js";
export * from "./config/read.js";
export * from "./sandbox/model/capacity.js";
