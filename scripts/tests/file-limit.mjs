// Loaded into each process of a test file. `node --test` waits for ever where a file leaves a socket, a server or a timer
// open, and its `--test-timeout` holds for single tests alone: here the file ends at its limit, and says what kept it.
import { isMainThread } from "node:worker_threads";

const LIMIT_MS = Number(process.env.COPPICE_TEST_FILE_LIMIT_MS);

/** What a handle of Node is, in a few words. */
function describeHandle(handle) {
  const kind = handle.constructor?.name ?? "handle";
  if (kind === "ChildProcess")
    return `child process ${handle.pid}: ${handle.spawnargs.join(" ").slice(0, 200)}`;
  const local = handle.address?.();
  const path = typeof local === "string" ? local : [local?.address, local?.port].filter(Boolean).join(":");
  const peer = handle.remoteAddress === undefined ? "" : ` to ${handle.remoteAddress}:${handle.remotePort}`;
  return `${kind} ${path}${peer}`.trim();
}

if (isMainThread && process.env.NODE_TEST_CONTEXT?.startsWith("child") && LIMIT_MS > 0) {
  setTimeout(() => {
    // Node has no public list of handles with their addresses.
    const handles = process._getActiveHandles().filter((handle) => handle.fd === undefined || handle.fd > 2);
    const rest = process.getActiveResourcesInfo().filter((kind) => !/Wrap$|^TTY/.test(kind));
    const file = process.argv[1];
    const lines = [...handles.map(describeHandle), ...new Set(rest)].map((line) => `  ${line}\n`);
    process.stderr.write(`${file} did not end in ${LIMIT_MS / 1000} s. Still open:\n${lines.join("")}`);
    for (const handle of handles) if (handle.constructor?.name === "ChildProcess") handle.kill("SIGKILL");
    process.exit(1);
  }, LIMIT_MS).unref();
}
