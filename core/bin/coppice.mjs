#!/usr/bin/env node
// The command line. It checks Node's version, then hands over to the compiled program. This file must run on older
// Nodes, too.
import { existsSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { endWithNpm } from "./end-with-npm.mjs";

const OLDEST = [22, 22];

function isNewEnough() {
  const [major, minor] = process.versions.node.split(".").map(Number);
  return major > OLDEST[0] || (major === OLDEST[0] && minor >= OLDEST[1]);
}

/** In a checkout of the project: a path from its root. */
function inCheckout(path) {
  return fileURLToPath(new URL(`../../${path}`, import.meta.url));
}

/**
 * In a checkout, adopts the Python that set-up has found for the code interpreter. JavaScript kernels run on this Node.
 */
function adoptInterpreters() {
  process.env.COPPICE_NODE ||= process.execPath;
  const record = inCheckout(".toolchain/python.json");
  if (process.env.COPPICE_PYTHON || !existsSync(record)) return;
  const { checkout, interpreter } = JSON.parse(readFileSync(record, "utf8"));
  // A copy of a checkout has the record of the other one.
  if (`${checkout}/` === inCheckout("")) process.env.COPPICE_PYTHON = interpreter;
}

async function runUnderFetchedNode() {
  const node = inCheckout(".toolchain/node/node_modules/node/bin/node");
  if (!existsSync(node)) {
    console.error(
      `coppice: Node ${OLDEST.join(".")} or newer is missing (this is ${process.versions.node}): install Node 24 ` +
        "and put it first on PATH, or run `npm run setup` in a checkout of the project.",
    );
    return 1;
  }
  const { runInForeground } = await import(
    new URL("../../scripts/toolchain/foreground.mjs", import.meta.url)
  );
  const self = fileURLToPath(import.meta.url);
  const [verb] = process.argv.slice(2);
  // A server reads no stdin, and a second Ctrl-C ends it at once. Other verbs may be fed by a pipe, and end with one.
  const options =
    verb === "start" || verb === "dev"
      ? {}
      : { stdio: ["inherit", "inherit", "inherit", "ipc"], detached: false };
  return runInForeground(node, [...process.execArgv, self, ...process.argv.slice(2)], options);
}

async function runHere() {
  const program = new URL("../dist/cli.js", import.meta.url);
  if (!existsSync(program)) {
    console.error("coppice: the project is not built: run `npm run setup` in it.");
    return 1;
  }
  adoptInterpreters();
  // Started by another process of ours: ends with it.
  if (process.connected) {
    process.once("disconnect", () => process.kill(process.pid, "SIGTERM"));
    process.channel.unref();
  } else endWithNpm();
  const { main } = await import(program);
  return main(process.argv.slice(2));
}

process.exitCode = await (isNewEnough() ? runHere() : runUnderFetchedNode());
