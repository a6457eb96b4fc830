// A shell that keeps its state, a streamed command, a server in the background, and an `exit` that is survived.
import { openSandbox } from "./cloudflare-in-node.mjs";

const { E2B_API_URL, E2B_SANDBOX_URL, E2B_API_KEY } = process.env;

async function callApi(method, path, body) {
  const response = await fetch(E2B_API_URL + path, {
    method,
    headers: { "x-api-key": E2B_API_KEY, "content-type": "application/json" },
    body: body && JSON.stringify(body),
  });
  if (!response.ok) throw new Error(`${method} ${path}: ${await response.text()}`);
  return response;
}

const created = await callApi("POST", "/sandboxes", { templateID: "base", secure: true });
const { sandboxID, envdAccessToken } = await created.json();
try {
  const sandbox = await openSandbox({
    url: `${E2B_SANDBOX_URL}/sandboxes/${sandboxID}/shell`,
    headers: { "x-access-token": envdAccessToken },
  });

  await sandbox.exec("mkdir -p site && cd site && name=world");
  const { stdout } = await sandbox.exec('echo "hello, $name, from $(basename "$PWD")"');
  console.log(stdout);

  await sandbox.exec("for n in 1 2 3; do echo step $n; sleep 0.1; done", {
    stream: true,
    onOutput: (stream, data) => process.stdout.write(`${stream}: ${data}`),
  });

  await sandbox.setEnvVars({ QUOTE: "it's here" });
  console.log((await sandbox.exec("printenv QUOTE")).stdout);

  const session = await sandbox.createSession({ id: "other", cwd: "/tmp" });
  console.log("name in another session:", (await session.exec('echo "${name-none}"')).stdout);

  const ticker = await sandbox.startProcess("for n in 1 2 3; do sleep 0.1; echo tick $n; done; exit 3");
  console.log("waited for:", (await ticker.waitForLog("tick 2")).line);
  console.log("exit code:", (await ticker.waitForExit()).exitCode);

  await sandbox.exec("exit 42").catch(({ name, exitCode }) => console.log(name, exitCode));
  console.log((await sandbox.exec("echo goes on")).stdout);
} finally {
  await callApi("DELETE", `/sandboxes/${sandboxID}`);
}
