import { spawn, spawnSync } from "node:child_process";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { existsSync } from "node:fs";
import { ROOT } from "./project.mjs";

/** Number of attempts of a step that uses the network, and the pause between two. */
const ATTEMPTS = 3;
const PAUSE_MS = 5_000;

/** Of the output of a failed step. */
const MOST_LINES = 200;

/** A failed step of set-up that has printed its own error. */
export class FailedStep extends Error {
  name = "FailedStep";
}

/**
 * Runs a command to its end, in the root of the project, with the terminal's own streams.
 * @returns its exit code; 127 when the program does not exist.
 */
export function runStep(command, parameters, { onStart, ...options } = {}) {
  return new Promise((resolve) => {
    const env = withHostTrust(options.env ?? process.env);
    const child = spawn(command, parameters, { cwd: ROOT, stdio: "inherit", ...options, env });
    onStart?.(child);
    child.on("error", () => resolve(127));
    child.on("close", (code) => resolve(code ?? 1));
  });
}

/**
 * As `runStep`, but prints the output only after a failure, whole and line by line: steps run beside each other.
 * @param what name of the step.
 */
export async function runQuietly(what, command, parameters, options = {}) {
  const lines = [];
  const add = (line) => {
    lines.push(line);
    if (lines.length > MOST_LINES) lines.shift();
  };
  const onStart = (child) => {
    for (const stream of [child.stdout, child.stderr]) createInterface({ input: stream }).on("line", add);
  };
  const code = await runStep(command, parameters, { ...options, stdio: ["ignore", "pipe", "pipe"], onStart });
  if (code !== 0 && lines.length > 0)
    console.error(`coppice: ${what} printed:\n${lines.map((line) => `  ${line}\n`).join("")}`.trimEnd());
  return code;
}

/** As `runQuietly`, repeated a few times after a failure, which is printed each time. */
export async function runStepAgain(what, command, parameters, options) {
  for (let attempt = 1; ; attempt++) {
    const code = await runQuietly(what, command, parameters, options);
    if (code === 0 || code === 127 || attempt === ATTEMPTS) return code;
    console.error(`coppice: ${what} failed (exit code ${code}), attempt ${attempt} of ${ATTEMPTS}`);
    await sleep(PAUSE_MS * attempt);
  }
}

/** As `runStep`. @throws FailedStep that names `what` when the exit code is not 0. */
export async function mustRunStep(what, command, parameters, options) {
  const code = await runStep(command, parameters, options);
  if (code !== 0) throw new FailedStep(`${what} failed (exit code ${code})`);
}

/** Results of steps that run beside each other. A failure is told when all have ended. */
export async function allOf(steps) {
  const results = await Promise.allSettled(steps);
  const failed = results.find(({ status }) => status === "rejected");
  if (failed !== undefined) throw failed.reason;
  return results.map(({ value }) => value);
}

/** Runs a long step, and prints its name and its duration. */
export async function told(what, run) {
  const startedMs = Date.now();
  console.log(`${what} …`);
  const result = await run();
  console.log(`${what}: ${((Date.now() - startedMs) / 1000).toFixed(1)} s`);
  return result;
}

/** Output of a short command; undefined when it fails or does not exist. */
export function outputOf(command, parameters, options = {}) {
  const { status, stdout } = spawnSync(command, parameters, {
    encoding: "utf8",
    stdio: ["ignore", "pipe", "ignore"],
    ...options,
  });
  return status === 0 ? stdout.trim() : undefined;
}

/** Files with all authorities that a system trusts: of Debian and Alpine, Fedora, FreeBSD. */
const BUNDLES = [
  "/etc/ssl/certs/ca-certificates.crt",
  "/etc/pki/tls/certs/ca-bundle.crt",
  "/etc/ssl/cert.pem",
];

/**
 * An environment in which npm and pip, which have lists of their own, trust what this host trusts: the authority of a
 * proxy that opens TLS, for instance. What is set stays, also where it is empty.
 */
function withHostTrust(environment) {
  const bundle = environment.SSL_CERT_FILE || BUNDLES.find((path) => existsSync(path));
  return bundle === undefined
    ? environment
    : { NODE_EXTRA_CA_CERTS: bundle, PIP_CERT: bundle, ...environment };
}
