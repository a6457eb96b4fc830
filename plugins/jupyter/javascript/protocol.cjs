"use strict";
// The thread that speaks to the server. Cells run in another one, so this one answers during cells.
const { createHmac, randomUUID, timingSafeEqual } = require("node:crypto");
const { Session } = require("node:inspector");
const { StringDecoder } = require("node:string_decoder");
const { parentPort, workerData } = require("node:worker_threads");
const { listen } = load("zmtp");
const { reader } = load("output-ring");
const { sourceReader } = load("source");

const DELIMITER = Buffer.from("<IDS|MSG>");
const MAX_PIECE = 256 * 1024;
const INTERRUPT_WAIT_MS = 1000;
// Number of cancelled requests to remember that have not arrived yet.
const REMEMBERED = 1000;

const { key, language, prefix, ring: ringMemory } = workerData;
const session = randomUUID();
const ring = reader(ringMemory);
const debuggerSession = new Session();

const readSource = sourceReader(() => load("acorn"));
// Suppresses the warning that stripping types is experimental.
process.removeAllListeners("warning");

let executionCount = 0;
let cell;
const waiting = [];
const cancelled = new Set();
/** Events from the other thread, in order. */
const events = [];
let isPumping = false;
const decoders = { stdout: new StringDecoder("utf8"), stderr: new StringDecoder("utf8") };
let iopub;

// --- messages ---

function frames(type, content, parent, identities = []) {
  const header = {
    msg_id: randomUUID(),
    msg_type: type,
    session,
    username: "kernel",
    date: new Date().toISOString(),
    version: "5.3",
  };
  const text = typeof content === "string" ? content : JSON.stringify(content);
  const parts = [JSON.stringify(header), JSON.stringify(parent ?? {}), "{}", text].map((part) =>
    Buffer.from(part),
  );
  return [...identities, DELIMITER, Buffer.from(signature(parts)), ...parts];
}

function signature(parts) {
  const hmac = createHmac("sha256", key);
  for (const part of parts) hmac.update(part);
  return hmac.digest("hex");
}

/** A request, or undefined when the signature is wrong. */
function parse(message) {
  const start = message.findIndex((frame) => frame.equals(DELIMITER));
  const [signed, ...parts] = message.slice(start + 1);
  if (start < 0 || parts.length < 4) return undefined;
  const expected = Buffer.from(signature(parts.slice(0, 4)));
  if (signed.length !== expected.length || !timingSafeEqual(signed, expected)) return undefined;
  const [header, , metadata, content] = parts.slice(0, 4).map((part) => JSON.parse(part.toString("utf8")));
  return { identities: message.slice(0, start), header, metadata, content };
}

/** Resolves when every reader can take more. */
async function publish(type, content, parent) {
  const message = frames(type, content, parent, [Buffer.from(type)]);
  for (const peer of iopub.peers) {
    if (!peer.isReady || peer.send(message)) continue;
    await new Promise((resolve) => {
      peer.socket.once("drain", resolve);
      peer.socket.once("close", resolve);
    });
  }
}

// --- what cells print and answer ---

async function drain(until) {
  let text = "";
  let stream;
  const flush = async () => {
    if (text !== "") await publish("stream", { name: stream, text }, cell?.parent ?? lastParent);
    text = "";
  };
  for (let piece = ring.read(until); piece !== undefined; piece = ring.read(until)) {
    if (piece.stream !== stream || text.length > MAX_PIECE) await flush();
    stream = piece.stream;
    text += decoders[stream].write(piece.data);
  }
  await flush();
}

let lastParent;

async function pump() {
  if (isPumping) return;
  isPumping = true;
  try {
    for (;;) {
      ring.arm();
      const event = events.shift();
      await drain(event?.at);
      if (event === undefined) {
        if (events.length === 0) return;
        continue;
      }
      await handle(event);
    }
  } finally {
    isPumping = false;
  }
}

async function handle(event) {
  if (event.type === "display") {
    await publish(event.message, event.content, cell?.parent ?? lastParent);
    ring.displayTaken();
  } else if (event.type === "done" && cell?.id === event.cell) await cellEnded(event);
}

async function cellEnded({ data, error, exit }) {
  const { parent, peer, identities, isSilent, stopOnError } = cell;
  const reply = { status: "ok", execution_count: executionCount, payload: [], user_expressions: {} };
  if (data !== undefined && !isSilent) {
    await publish(
      "execute_result",
      `{"execution_count": ${executionCount}, "data": ${data}, "metadata": {}}`,
      parent,
    );
  }
  if (error !== undefined) {
    await publish("error", error, parent);
    Object.assign(reply, { status: "error" }, error);
  }
  if (exit) reply.payload = [{ source: "ask_exit", keepkernel: false }];
  peer.send(frames("execute_reply", reply, parent, identities));
  lastParent = parent;
  cell = undefined;
  if (error !== undefined && stopOnError) await abort(waiting.splice(0));
  await publish("status", { execution_state: "idle" }, parent);
  if (exit) {
    await flushed(peer.socket);
    for (const { socket } of iopub.peers) await flushed(socket);
    // Otherwise the process waits for its debugger to detach.
    debuggerSession.disconnect();
    ring.farewell();
  } else next();
}

/** Resolves when everything written to a socket is sent. */
function flushed(socket) {
  return new Promise((resolve) => socket.write("", resolve));
}

async function abort(requests) {
  for (const { parent, peer, identities } of requests) {
    await publish("status", { execution_state: "busy" }, parent);
    peer.send(
      frames("execute_reply", { status: "aborted", execution_count: executionCount }, parent, identities),
    );
    await publish("status", { execution_state: "idle" }, parent);
  }
}

function next() {
  if (cell !== undefined) return;
  cell = waiting.shift();
  if (cell === undefined) return;
  const { content, metadata, parent } = cell;
  const code = String(content.code ?? "");
  cell.id = parent.msg_id;
  cell.isSilent = content.silent === true;
  cell.stopOnError = content.stop_on_error !== false;
  if (!cell.isSilent && code.trim() !== "") executionCount++;
  void publish("status", { execution_state: "busy" }, parent);
  if (!cell.isSilent) void publish("execute_input", { code, execution_count: executionCount }, parent);
  run({ cell: cell.id, count: executionCount, code, variables: metadata?.env_vars ?? {} });
}

/** Object of the other thread whose functions are called. */
let cellsId;

function call(method, ...parameters) {
  const names = parameters.map((_, index) => `p${index}`).join(", ");
  debuggerSession.post("Runtime.callFunctionOn", {
    objectId: cellsId,
    functionDeclaration: `function (${names}) { this.${method}(${names}); }`,
    arguments: parameters,
  });
}

function connect() {
  debuggerSession.connectToMainThread();
  return new Promise((resolve) => {
    debuggerSession.post("Runtime.evaluate", { expression: "globalThis.__cells" }, (_error, { result }) => {
      cellsId = result.objectId;
      debuggerSession.post("Runtime.evaluate", { expression: "delete globalThis.__cells" }, resolve);
    });
  });
}

function run({ cell: id, count, code, variables }) {
  const objectGroup = `cell-${count}`;
  const value = { value: id };
  call("begin", { value: { cell: id, count, code, variables } });
  // Code before the first await is run by the debugger itself and cannot be interrupted: it must not contain the user's
  // code.
  const expression = `${prefix}${readSource(code, language)}\n//# sourceURL=cell-${count}.js`;
  const settings = { replMode: true, awaitPromise: true, objectGroup };
  debuggerSession.post("Runtime.evaluate", { expression, ...settings }, (error, answer) => {
    if (cell?.id !== id) return;
    if (error) {
      // Terminated by the interrupt; or the promise that the cell awaits was garbage-collected and cannot settle.
      if (/collected/.test(error.message)) call("giveUp", value);
      return;
    }
    const { result, exceptionDetails } = answer;
    if (exceptionDetails === undefined) call("take", value, argumentOf(result));
    else {
      const { exception, lineNumber: line, columnNumber } = exceptionDetails;
      const column = line === 0 ? columnNumber - prefix.length : columnNumber;
      call("fail", value, argumentOf(exception ?? {}), { value: { line, column } });
    }
    debuggerSession.post("Runtime.releaseObjectGroup", { objectGroup });
  });
}

/** A value of the debugger in the form of an argument. */
function argumentOf({ objectId, unserializableValue, value }) {
  if (objectId !== undefined) return { objectId };
  return unserializableValue !== undefined ? { unserializableValue } : { value };
}

/** Interrupts the running cell, in a loop, in a program that it waits for, or in an await. */
async function interrupt() {
  const running = cell?.id;
  try {
    process.kill(-process.pid, "SIGINT");
  } catch {
    // Not a group leader: there is no group to signal.
  }
  if (running === undefined) return;
  const terminated = new Promise((resolve) => {
    debuggerSession.post("Runtime.terminateExecution", resolve);
  });
  await Promise.race([terminated, new Promise((resolve) => setTimeout(resolve, INTERRUPT_WAIT_MS))]);
  parentPort.postMessage({ type: "interrupt", cell: running });
}

/** Interrupts a running request by its id or session; a waiting one will not run. True when it was running. */
async function cancel({ msg_id: id, session: ofSession }) {
  const isMeant = ({ parent }) => (id === undefined ? parent.session === ofSession : parent.msg_id === id);
  const [dropped, kept] = [waiting.filter(isMeant), waiting.filter((request) => !isMeant(request))];
  waiting.splice(0, waiting.length, ...kept);
  const isRunning = cell !== undefined && isMeant(cell);
  if (isRunning) await interrupt();
  // More requests of a session may be on their way.
  if (id === undefined || (!isRunning && dropped.length === 0)) remember(id ?? ofSession);
  await abort(dropped);
  return isRunning;
}

function remember(idOrSession) {
  cancelled.add(idOrSession);
  if (cancelled.size > REMEMBERED) cancelled.delete(cancelled.values().next().value);
}

// --- requests ---

const INFO = {
  protocol_version: "5.3",
  implementation: "coppice-javascript",
  implementation_version: "1.0",
  language_info: {
    name: language,
    version: process.versions.node,
    mimetype: language === "typescript" ? "text/x-typescript" : "text/javascript",
    file_extension: language === "typescript" ? ".ts" : ".js",
  },
  banner: `Node.js ${process.version}`,
  help_links: [],
  supported_features: [],
};

/** The replies to requests, beside their status. */
const ANSWERS = {
  kernel_info_request: () => INFO,
  complete_request: ({ cursor_pos: at }) => ({ matches: [], cursor_start: at, cursor_end: at, metadata: {} }),
  inspect_request: () => ({ found: false, data: {}, metadata: {} }),
  is_complete_request: () => ({ status: "unknown" }),
  history_request: () => ({ history: [] }),
  comm_info_request: () => ({ comms: {} }),
  shutdown_request: ({ restart }) => ({ restart: restart === true }),
  interrupt_request: () => interrupt(),
  cancel_request: async (content) => ({ is_running: await cancel(content) }),
};

async function answer(message, peer) {
  const request = parse(message);
  if (request === undefined) return;
  const { identities, header: parent, content, metadata } = request;
  if (parent.msg_type === "execute_request") {
    const execution = { parent, content, metadata, peer, identities };
    if (cancelled.has(parent.msg_id) || cancelled.has(parent.session)) {
      await abort([execution]);
      return;
    }
    waiting.push(execution);
    next();
    return;
  }
  const known = Object.hasOwn(ANSWERS, parent.msg_type) ? ANSWERS[parent.msg_type] : undefined;
  if (known === undefined) return;
  await publish("status", { execution_state: "busy" }, parent);
  const reply = { status: "ok", ...(await known(content)) };
  peer.send(frames(parent.msg_type.replace(/request$/, "reply"), reply, parent, identities));
  await publish("status", { execution_state: "idle" }, parent);
  if (parent.msg_type === "shutdown_request") {
    debuggerSession.disconnect();
    parentPort.postMessage({ type: "exit" });
  }
}

// Broken messages are ignored.
const receive = (message, peer) => void answer(message, peer).catch(() => undefined);

parentPort.on("message", (event) => {
  if (event !== undefined) events.push(event);
  void pump();
});

void (async () => {
  await connect();
  const [shell, control, stdin, hb] = await Promise.all([
    listen("ROUTER", receive),
    listen("ROUTER", receive),
    listen("ROUTER", () => undefined),
    listen("REP", (message, peer) => peer.send(message)),
  ]);
  iopub = await listen("PUB", () => undefined);
  parentPort.postMessage({
    type: "ports",
    ports: { shell: shell.port, control: control.port, stdin: stdin.port, hb: hb.port, iopub: iopub.port },
  });
})();
