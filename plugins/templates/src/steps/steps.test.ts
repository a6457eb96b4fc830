import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { BuildHost, type Step, WITHOUT_BUILDS } from "../testing/build-host.js";

describe("steps of a build", { skip: WITHOUT_BUILDS, timeout: 240_000, concurrency: 1 }, () => {
  let host: BuildHost;
  before(async () => {
    host = await BuildHost.open();
  });
  after(() => host[Symbol.asyncDispose]());

  /** Output of the last step. */
  async function outputOf(...steps: readonly Step[]): Promise<readonly string[]> {
    const { lines } = await host.build({ steps });
    const prefix = `[builder ${steps.length}/${steps.length}] [stdout]: `;
    return lines.filter((line) => line.startsWith(prefix)).map((line) => line.slice(prefix.length));
  }

  async function failureOf(...steps: readonly Step[]): Promise<string> {
    const { run } = host.start({ steps });
    const error = await run.then(
      () => new Error("it did not fail"),
      (failure: unknown) => failure as Error,
    );
    assert.equal(error.name, "BuildFailure", error.stack);
    assert.equal(Reflect.get(error, "step"), String(steps.length), error.message);
    return error.message;
  }

  it("RUN has the user, the directory and the variables of the steps before it", async () => {
    assert.deepEqual(await outputOf(["RUN", "id -un; pwd; echo $HOME $USER $LOGNAME $OF_IMAGE"]), [
      "user",
      "/home/user",
      "/home/user user user yes",
    ]);
    assert.deepEqual(await outputOf(["RUN", "id -un; pwd; echo $HOME", "root"]), ["root", "/root", "/root"]);
    assert.deepEqual(
      await outputOf(
        ["USER", "root"],
        ["WORKDIR", "/app"],
        ["ENV", "A", "1", "B", "2 3"],
        ["RUN", 'id -un; pwd; echo "$A$B"'],
      ),
      ["root", "/app", "12 3"],
    );
    assert.deepEqual(
      await outputOf(
        ["ENV", "LATER_PATH", "/later", "PATH", "/mine"],
        ["RUN", "echo $PATH; ls /app 2>/dev/null; wc -c < /dev/stdin"],
      ),
      ["/usr/local/bin:/usr/bin:/bin:/later", "0"],
    );
  });

  it("RUN fails with E2B's words", async () => {
    assert.equal(await failureOf(["RUN", "exit 43"]), "failed to run command 'exit 43': exit status 43");
    assert.equal(
      await failureOf(["RUN", "kill -9 $$"]),
      "failed to run command 'kill -9 $$': signal: killed",
    );
    assert.equal(
      await failureOf(["RUN", "whoami", "root123"]),
      "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'",
    );
    assert.equal(
      await failureOf(["RUN", "true"], ["WORKDIR", "/gone"], ["RUN", "rmdir /gone", "root"], ["RUN", "pwd"]),
      "failed to run command 'pwd': command failed: invalid_argument: cwd '/gone' does not exist",
    );
    const long = `exit 3 # ${"x".repeat(300_000)}`;
    assert.match(
      await failureOf(["RUN", long]),
      /^failed to run command 'exit 3 # x{4087}…': command failed: invalid_argument: argument list too long$/,
    );
    assert.equal(await failureOf(["RUN"]), "RUN requires command argument");
    assert.equal(await failureOf(["MOUNT", "x"]), "command type MOUNT is not implemented");
  });

  it("RUN that fails says what its sandbox lacked", async () => {
    const big = "dd if=/dev/zero of=/dev/null bs=512M count=1; exit $?";
    await assert.rejects(host.start({ limits: { memoryMiB: 128 }, steps: [["RUN", big]] }).run, {
      name: "BuildFailure",
      message: `failed to run command '${big}': exit status 137 (out of memory: limit 128 MiB)`,
    });
  });

  it("ENV expands variables of root's login shell, and nothing else", async () => {
    const text = [
      "${PATH}:/more",
      "$HOME/$OF_IMAGE.$EARLIER.${EARLIER}",
      "\\ \" ` $(id) $((1)) $ $1 ${ ' \n\ttwo lines",
      "${NOTHING:-default} ${HOME:+set} ${NOTHING:+unset}.",
    ];
    const names = ["P", "H", "L", "D"];
    const { result } = await host.build({
      steps: [
        ["ENV", "EARLIER", "1", "SAME", "${SAME}2"],
        ["arg", ...text.flatMap((value, at) => [names[at] ?? "", value])],
      ],
    });
    const { environment } = result.context;
    assert.deepEqual(
      ["SAME", ...names].map((name) => environment[name]),
      ["2", "/usr/local/bin:/usr/bin:/bin:/more", "/root/..", text[2], "default set ."],
    );
    assert.deepEqual(await outputOf(["ENV", "L", text[2] ?? ""], ["RUN", 'printf %s "$L" | md5sum']), [
      `${(await import("node:crypto")).hash("md5", text[2] ?? "")}  -`,
    ]);
    const open = "${HOME:-x} ${HOME:-$HOME ${";
    assert.deepEqual(
      await outputOf(["ENV", "A", "${HOME:-".repeat(400_000)], ["ENV", "A", open], ["RUN", 'echo "$A"']),
      ["/root ${HOME:-/root ${"],
    );
    const many = Array.from({ length: 100_000 }, (_, at) => `$NAME_${at}`).join("");
    assert.match(await failureOf(["ENV", "A", many]), /^argument list too long$/);
    assert.equal(await failureOf(["ENV", "A"]), "ENV requires both a key and value arguments");
    assert.equal(await failureOf(["arg", "A", "1", "B"]), "ARG requires both a key and value arguments");
    assert.equal(await failureOf(["ENV"]), "ENV does not support passing no arguments");
    assert.deepEqual(await outputOf(["ENV", 'A="b', 'c"'], ["RUN", 'echo "$A"']), ['"b=c"']);
    assert.match(await failureOf(["ENV", "", "1"]), /^'' is no name of an environment variable$/);
    assert.match(await failureOf(["ENV", "A", "1\0"]), /NUL byte$/);
  });

  it("USER makes an account where there is none, and keeps the directory", async () => {
    assert.deepEqual(
      await outputOf(
        ["WORKDIR", "/app"],
        ["USER", "new-user"],
        ["RUN", "id -un; id -u; id -gn; pwd; echo ~; cat ~/.bashrc; touch ~/x; grep -c new-user /etc/passwd"],
      ),
      ["new-user", "1001", "new-user", "/app", "/home/new-user", "# of the skeleton", "1"],
    );
    assert.deepEqual(await outputOf(["USER", "a"], ["USER", "b"], ["USER", "a"], ["RUN", "id -u; id -u b"]), [
      "1001",
      "1002",
    ]);
    for (const name of ["", "a b", "-x", "a:b", "a\nb", "../x", "$(id)", "x".repeat(40), "0"]) {
      assert.match(await failureOf(["USER", name]), /^failed to create user: invalid user name '/);
    }
    assert.equal(await failureOf(["USER"]), "USER requires a username argument");
  });

  it("WORKDIR makes new directories for the user, and leaves others alone", async () => {
    const script = "pwd; stat -c '%U %n' /srv /srv/a /srv/a/b /srv/a/b/c";
    assert.deepEqual(
      await outputOf(["RUN", "mkdir -p /srv/a", "root"], ["WORKDIR", "/srv/a/b/c"], ["RUN", script]),
      ["/srv/a/b/c", "root /srv", "root /srv/a", "user /srv/a/b", "user /srv/a/b/c"],
    );
    assert.deepEqual(await outputOf(["WORKDIR", "app"], ["WORKDIR", "../$(id) x/-y"], ["RUN", "pwd"]), [
      "/$(id) x/-y",
    ]);
    assert.match(
      await failureOf(["RUN", "touch /tmp/file"], ["WORKDIR", "/etc/passwd/x"]),
      /^failed to create workdir: exit status 1: /,
    );
    assert.match(await failureOf(["WORKDIR", "/a\0b"]), /^failed to create workdir: it is no path$/);
    assert.equal(await failureOf(["WORKDIR"]), "WORKDIR requires a path argument");
  });

  it("steps that change no file make no image", async () => {
    const { result } = await host.build({ steps: [["RUN", "true"]] });
    const before = (await host.backend.images?.list())?.length ?? 0;
    await host.build({
      steps: [
        ["RUN", "true"],
        ["ENV", "X", "$HOME"],
        ["USER", "root"],
        ["WORKDIR", "/tmp"],
        ["ENV", "Y", "2"],
      ],
    });
    // The one of the end.
    assert.equal((await host.backend.images?.list())?.length, before + 1);
    assert.ok(result);
  });

  it("output without an end takes no more memory", async () => {
    const { lines } = await host.build({
      steps: [["RUN", "head -c 20000000 /dev/zero | tr '\\0' x; echo; printf 'é%.0s' 1 2 3"]],
    });
    assert.ok(lines.every((line) => line.length <= 4_200));
    assert.equal(lines.filter((line) => line.includes("xxxx")).length, Math.ceil(20_000_000 / 4_096));
    assert.ok(lines.includes("[builder 1/1] [stdout]: ééé"));
  });
});
