"use strict";
// Runs JavaScript cells in this process's main thread and global scope. Another thread speaks to the server and runs
// the cells here in V8's REPL mode, through the debugger's interface. That interface must not be used from this thread:
// it calls JavaScript even during garbage collection, which ends the process.
const { Console } = require("node:console");
const { setMaxListeners } = require("node:events");
const { writeSync } = require("node:fs");
const { stripTypeScriptTypes, syncBuiltinESMExports } = require("node:module");
const { join } = require("node:path");
const { Writable } = require("node:stream");
const { pathToFileURL } = require("node:url");
const { inspect, promisify } = require("node:util");
const vm = require("node:vm");
const { Worker } = require("node:worker_threads");
const { allocate, writer } = load("output-ring");
const { bundleToFit, textToFit } = load("fitting");
const { bundleOf } = load("mime");

if (start.language === "typescript" && stripTypeScriptTypes === undefined) {
  // The client is told a program's last line.
  writeSync(2, `TypeScript needs Node.js 22.13 or newer in the sandbox, which has ${process.version}\n`);
  process.exit(1);
}

const MAX_DISPLAYS_WAITING = 64;
const LAST_OUTPUT_MS = 2000;

const memory = allocate();
const protocol = new Worker(workerSource, {
  eval: true,
  workerData: { ...start, ring: memory, sources },
  execArgv: [],
  stdout: true,
  stderr: true,
});
const ring = writer(memory, () => protocol.postMessage(undefined));
const send = (event) => protocol.postMessage({ ...event, at: ring.position });
const realExit = process.exit.bind(process);

// --- standard streams ---

function outputStream(fd) {
  const output = new Writable();
  output.fd = fd;
  // Node's own write keeps a state, which an interrupt in the middle would break permanently.
  output.write = (chunk, ...rest) => {
    const encoding = typeof rest[0] === "string" ? rest[0] : "utf8";
    ring.write(fd, typeof chunk === "string" ? Buffer.from(chunk, encoding) : chunk);
    const written = rest.at(-1);
    if (typeof written === "function") process.nextTick(written);
    return true;
  };
  return output;
}

for (const [name, fd] of Object.entries({ stdout: 1, stderr: 2 })) {
  Object.defineProperty(process, name, { value: outputStream(fd), configurable: true, enumerable: true });
}
// The debugger's console, which is Node's default, keeps the logged values in memory.
globalThis.console = new Console({ stdout: process.stdout, stderr: process.stderr });

// --- what an interrupt ends ---

/** The running cell. Timers that it leaves belong to it until the next one begins. */
let current;

const timers = require("node:timers");
const timersPromises = require("node:timers/promises");
const noCell = new AbortController();

const CANCELLING = { setTimeout: clearTimeout, setInterval: clearInterval, setImmediate: clearImmediate };
for (const [name, cancel] of Object.entries(CANCELLING)) {
  const original = globalThis[name];
  const started = (callback, ...parameters) => {
    const cell = current;
    if (cell === undefined || typeof callback !== "function") return original(callback, ...parameters);
    const isRepeated = name === "setInterval";
    const timer = original(
      (...values) => {
        if (!isRepeated) cell.timers.delete(timer);
        return callback(...values);
      },
      ...parameters,
    );
    cell.timers.set(timer, cancel);
    return timer;
  };
  Object.defineProperty(started, "name", { value: name });
  if (name !== "setInterval") {
    const promised = timersPromises[name];
    const isTimeout = name === "setTimeout";
    timersPromises[name] = (...parameters) => {
      const at = isTimeout ? 2 : 1;
      const options = parameters[at] ?? {};
      const signal = (current?.interrupted ?? noCell).signal;
      parameters[at] = {
        ...options,
        signal: options.signal === undefined ? signal : AbortSignal.any([options.signal, signal]),
      };
      return promised(...(isTimeout ? [parameters[0], parameters[1]] : [parameters[0]]), parameters[at]);
    };
    Object.defineProperty(started, promisify.custom, { value: timersPromises[name] });
  }
  globalThis[name] = timers[name] = started;
}
syncBuiltinESMExports();

// --- the user's globals ---

/** Shows a value, or with `raw` a bundle of MIME types, in order with printed output. */
globalThis.display = (value, { raw = false } = {}) => {
  const show = (content) => {
    send({
      type: "display",
      message: "display_data",
      content: `{"data": ${fitting(content)}, "metadata": {}, "transient": {}}`,
    });
    ring.displayed(MAX_DISPLAYS_WAITING);
  };
  const bundle = bundleOf(value, raw);
  if (typeof bundle === "string") return show(bundle);
  const showing = bundle.then(show);
  current?.showing.push(showing);
  return showing;
};

function fitting(bundle) {
  return bundleToFit(bundle, start.mostBytes, (type, size) =>
    process.stderr.write(`[${type} left out: ${size} bytes are more than a message may have]\n`),
  );
}

// From a script in the file system: code that V8 runs for its debugger cannot import.
function importer() {
  // Suppresses the warning that import hooks are experimental.
  const { emitWarning } = process;
  process.emitWarning = () => undefined;
  try {
    return new vm.Script("(specifier, options) => import(specifier, options)", {
      filename: join(process.cwd(), "cell.mjs"),
      importModuleDynamically: vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER,
    }).runInThisContext();
  } finally {
    process.emitWarning = emitWarning;
  }
}
const hidden = (value) => ({ value, configurable: true, writable: true, enumerable: false });
Object.defineProperties(globalThis, {
  __import: hidden((specifier, options) => importer()(String(specifier), options)),
  __importMeta: hidden(() => ({
    url: pathToFileURL(join(process.cwd(), "cell.mjs")).href,
    dirname: process.cwd(),
    filename: join(process.cwd(), "cell.mjs"),
    resolve: (specifier) => pathToFileURL(require.resolve(specifier)).href,
  })),
  console: hidden(globalThis.console),
});

process.exit = (code = process.exitCode ?? 0) => {
  // Its caller expects that nothing after it runs, so this thread waits here.
  if (current !== undefined) {
    const traceback = [`the process exited with code ${code}`];
    const error = Number(code) === 0 ? undefined : { ename: "ExitCode", evalue: String(code), traceback };
    send({ type: "done", cell: current.id, error, exit: true });
    ring.awaitFarewell(LAST_OUTPUT_MS);
  }
  realExit(Number(code) || 0);
};

process.on("uncaughtException", (error) => {
  process.stderr.write(`Uncaught ${stackOf(error)}\n`);
});
process.on("unhandledRejection", (reason) => {
  if (reason?.name !== "AbortError") process.stderr.write(`Uncaught (in promise) ${stackOf(reason)}\n`);
});
// Interrupts come from the other thread; this one must only survive the signal.
process.on("SIGINT", () => undefined);

// --- cells ---

/** Functions that the other thread calls through the debugger. */
globalThis.__cells = {
  begin({ cell, count, code, variables }) {
    const before = Object.fromEntries(Object.keys(variables).map((name) => [name, process.env[name]]));
    const file = `cell-${count}.js`;
    current = {
      id: cell,
      file,
      code,
      before,
      timers: new Map(),
      interrupted: new AbortController(),
      showing: [],
    };
    setMaxListeners(0, current.interrupted.signal);
    Object.assign(process.env, variables);
  },
  // Neither must run the user's code here, where it could not be interrupted.
  take(cell, value) {
    if (current?.id === cell) void settle(current, async () => value);
  },
  giveUp(cell) {
    if (current?.id === cell) ended(current, { error: UNSETTLED });
  },
  fail(cell, thrown, place) {
    if (current?.id === cell) ended(current, { error: errorFields(thrown, current, place) });
  },
};

async function settle(running, value) {
  let outcome;
  try {
    // A cell that ends in a promise ends when the promise settles.
    const result = await value();
    outcome = result === undefined ? {} : { data: fitting(await bundleOf(result)) };
    await Promise.all(running.showing);
  } catch (error) {
    outcome = { error: errorFields(error, running) };
  }
  ended(running, outcome);
}

function ended(running, outcome) {
  if (current !== running) return;
  for (const [name, value] of Object.entries(running.before)) {
    if (value === undefined) delete process.env[name];
    else process.env[name] = value;
  }
  current = undefined;
  send({ type: "done", cell: running.id, ...outcome });
}

function interrupt(cell) {
  if (current?.id !== cell) return;
  const running = current;
  for (const [timer, cancel] of running.timers) cancel(timer);
  ended(running, { error: INTERRUPTED });
  running.interrupted.abort();
}

// --- errors ---

const INTERRUPTED = plainError("Interrupted", "the execution was interrupted");
const UNSETTLED = plainError("Error", "nothing is left that could settle what the cell awaits");

function plainError(ename, evalue) {
  return { ename, evalue, traceback: [`${ename}: ${evalue}`] };
}

function errorFields(thrown, running, place) {
  const isError = thrown instanceof Error || typeof thrown?.stack === "string";
  const name = isError ? String(thrown.name) : "Uncaught";
  const message = isError ? String(thrown.message) : inspect(thrown);
  // Code that does not compile has no frame of its own.
  const isUncompiled =
    place !== undefined && thrown instanceof SyntaxError && !String(thrown.stack).includes(running.file);
  const traceback = isUncompiled ? placeOf(place, running) + `${name}: ${message}` : stackOf(thrown);
  const [evalue, stack] = [message, traceback].map((part) => textToFit(part, start.mostBytes));
  return { ename: name, evalue, traceback: [stack] };
}

function placeOf({ line, column }, { code, file }) {
  const text = code.split("\n")[line];
  return text === undefined ? "" : `${file}:${line + 1}\n${text}\n${" ".repeat(Math.max(0, column))}^\n\n`;
}

const FIRST_LINE = /(cell-\d+\.js):1:(\d+)/g;

/** An error as it is printed, without the frames below the cell's. */
function stackOf(thrown) {
  const text = inspect(thrown);
  if (!(thrown instanceof Error)) return text;
  const lines = text.split("\n");
  const kept = lines.filter((line) => !/^ +at .*(\(node:|at node:|\[eval\]|coppice:)/.test(line));
  const last = kept.findLastIndex((line) => /^ +at .*cell-\d+\.js/.test(line));
  return (
    kept
      // The frames below it run cells.
      .filter((line, index) => last < 0 || index <= last || !/^ +at /.test(line))
      .join("\n")
      .replace(FIRST_LINE, (_place, file, column) => `${file}:1:${Math.max(1, column - start.prefix.length)}`)
  );
}

// --- the other thread ---

protocol.on("message", (event) => {
  if (event.type === "ports") writeSync(1, `${JSON.stringify(event.ports)}\n`);
  else if (event.type === "interrupt") interrupt(event.cell);
  else if (event.type === "exit") setTimeout(() => realExit(0), 20);
});
protocol.on("error", (error) => {
  writeSync(2, `${error.stack}\n`);
  realExit(1);
});
protocol.on("exit", () => realExit(1));
