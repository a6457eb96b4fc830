import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { type Context, Sandbox } from "@e2b/code-interpreter";
import { missingForNamespaces, onEachBackend } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import {
  type Installation,
  makeInstallation,
  namespacePlugins,
  ServerProcess,
} from "../../harness/server/server-process.js";

const READY_MS = 30_000;
const ZYGOTE = { enabled: true, imports: ["numpy"] };

async function metric(opsUrl: string | undefined, sample: string): Promise<number> {
  const page = await (await fetch(`${opsUrl}/metrics`)).text();
  const line = page.split("\n").find((candidate) => candidate.startsWith(`${sample} `));
  return Number(line?.slice(sample.length) ?? 0);
}

async function value(sandbox: Sandbox, code: string, context?: Context): Promise<string> {
  const { results, error } = await sandbox.runCode(code, context && { context });
  assert.equal(error, undefined, error?.traceback);
  return results[0]?.text ?? "";
}

const forked = (opsUrl: string | undefined): Promise<number> =>
  metric(opsUrl, 'coppice_jupyter_kernel_start_seconds_count{how="forked"}');

onEachBackend(
  "warm starts",
  ({ server, sandbox: first }) => {
    const ops = (): string | undefined => server().urls["ops"];
    const poolIsFull = (): Promise<boolean> =>
      eventually(
        "a sandbox is warm",
        async () => (await metric(ops(), 'coppice_sandboxes_warm{template="code-interpreter-v1"}')) === 1,
        READY_MS,
      );

    it("give an SDK a sandbox whose kernel runs, with the environment it asked for", async () => {
      await poolIsFull();
      const before = await forked(ops());
      await using warm = await disposable(Sandbox.create({ envs: { GIVEN: "é'\"" }, metadata: { a: "b" } }));
      const hits = 'coppice_sandboxes_warm_takes_total{template="code-interpreter-v1",outcome="hit"}';
      assert.equal(await metric(ops(), hits), 1);
      assert.equal((await warm.sandbox.getInfo()).metadata["a"], "b");
      const { logs } = await warm.sandbox.runCode("import os; print(os.environ['GIVEN'], os.getcwd())");
      assert.match(logs.stdout.join(""), /^é'" .*\/home\/user\n$/);
      const command = await warm.sandbox.commands.run("echo $GIVEN");
      assert.equal(command.stdout, "é'\"\n");
      assert.ok((await forked(ops())) >= before);
    });

    it("fork kernels that are the sandbox's like any other, and no two of whose sandboxes share a seed", async () => {
      await poolIsFull();
      await using warm = await disposable(Sandbox.create());
      const { sandbox } = warm;
      const before = await forked(ops());
      const contexts = [await sandbox.createCodeContext(), await sandbox.createCodeContext({ cwd: "/tmp" })];
      assert.ok((await forked(ops())) >= before + 2);
      const place =
        'import os; f\'{os.getuid()} {os.getgid()} {sorted(os.getgroups())} {os.readlink("/proc/self/ns/net")} ' +
        "{os.readlink(\"/proc/self/ns/pid\")} {os.umask(0o22)} ' + open('/proc/self/cgroup').read()";
      const program = `python3 -c "import os; print(os.getuid(), os.getgid())"`;
      const places = await Promise.all(contexts.map((context) => value(sandbox, place, context)));
      assert.equal(places[0], places[1]);
      assert.ok(places[0]?.startsWith((await sandbox.commands.run(program)).stdout.trim()));
      const cold = await sandbox.runCode(place, { language: "python" });
      assert.equal(cold.results[0]?.text, places[0]);
      const draws = await Promise.all(
        contexts.map((context) =>
          value(sandbox, "import random, numpy; (random.random(), numpy.random.rand())", context),
        ),
      );
      assert.notEqual(draws[0], draws[1]);
      const hash = "hash('a')";
      assert.notEqual(
        await value(sandbox, hash),
        await value(first(), hash),
        "a seed of its own for each sandbox",
      );
    });
  },
  {
    server: { sandboxes: { templates: { "base": {}, "code-interpreter-v1": { pool: { min: 1 } } } } },
    settings: { jupyter: { kernel: "eager", zygote: ZYGOTE } },
  },
);

describe("kernels that were forked", { skip: missingForNamespaces(), timeout: 240_000 }, () => {
  let installation: Installation;
  let server: ServerProcess;
  let sandbox: Sandbox;

  before(async () => {
    installation = await makeInstallation({
      config: {
        sandboxes: {
          defaultBackend: "linux-namespaces",
          onShutdown: "keep",
          templates: { "code-interpreter-v1": { pool: { min: 1 } } },
        },
      },
      plugins: (directory) => ({
        ...namespacePlugins(directory),
        jupyter: { python: "python3", zygote: ZYGOTE },
      }),
    });
    server = await ServerProcess.start(installation.configFile);
    pointSdkAt(server.url);
    sandbox = await Sandbox.create();
  });
  after(async () => {
    await sandbox.kill();
    await server.stop();
    await installation.remove();
  });

  it("outlive the server with their zygote; what waited in a pool does not", async () => {
    await value(sandbox, "1");
    await eventually(
      "its zygote is ready, and that of the one in the pool",
      async () => (await metric(server.urls["ops"], "coppice_jupyter_zygotes")) === 2,
      READY_MS,
    );
    const context = await sandbox.createCodeContext();
    assert.ok((await forked(server.urls["ops"])) >= 1);
    const zygotePid = await value(sandbox, "x = 42\nimport os\nos.getppid()", context);
    server.signal("SIGKILL");
    await server.ended;
    server = await ServerProcess.start(installation.configFile);
    pointSdkAt(server.url);
    sandbox = await Sandbox.connect(sandbox.sandboxId);
    assert.equal(await value(sandbox, "x", context), "42");
    const next = await sandbox.createCodeContext();
    assert.equal(await value(sandbox, "import os\nos.getppid()", next), zygotePid);
    const page = await Sandbox.list().nextItems();
    assert.deepEqual(
      page.map(({ sandboxId }) => sandboxId),
      [sandbox.sandboxId],
    );
  });
});

async function disposable(
  creating: Promise<Sandbox>,
): Promise<{ readonly sandbox: Sandbox } & AsyncDisposable> {
  const sandbox = await creating;
  return {
    sandbox,
    [Symbol.asyncDispose]: async () => void (await sandbox.kill()),
  };
}
