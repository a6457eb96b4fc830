import assert from "node:assert/strict";
import type { ConformanceCase } from "../kit/conformance-case.js";
import type { ConformanceContext } from "../kit/conformance-context.js";

/** The users of a sandbox are separate accounts. */
export const accountCases: readonly ConformanceCase[] = [
  {
    name: "a process has the ids, the groups and the home of the user that it is started as",
    group: "process",
    needs: ["accounts"],
    async run(context) {
      const root = await context.sandbox.user("root");
      assert.equal(root.uid, 0);
      for (const user of [context.user, root]) {
        const script = 'id -u; id -ru; id -g; id -rg; id -un; pwd; id -G; id -G "$1"';
        const seen = await context.succeed(script, { user: user.name, args: [user.name] });
        const [uid, realUid, gid, realGid, name, cwd, groups = "", meant = ""] = seen.split("\n");
        assert.deepEqual([uid, realUid], [String(user.uid), String(user.uid)]);
        assert.deepEqual([gid, realGid], [String(user.gid), String(user.gid)]);
        assert.equal(name, user.name);
        assert.equal(cwd, user.home);
        // The groups of the sandbox's own files, and none of the server's.
        assert.deepEqual(inOrder(groups), inOrder(meant));
      }
    },
  },
  {
    name: "supplementary groups are those that the sandbox's own group file says",
    group: "process",
    needs: ["accounts", "isolation"],
    async run(context) {
      const { name } = context.user;
      await context.succeed('echo "conformance:x:4242:$1" >> /etc/group', { user: "root", args: [name] });
      assert.ok(inOrder(await context.succeed("id -G")).includes("4242"), "the group is missing");
      const other = await context.provision();
      assert.ok(!inOrder(await context.succeed("id -G", { in: other })).includes("4242"));
    },
  },
  {
    name: "the default user cannot touch what is root's",
    group: "process",
    needs: ["accounts"],
    async run(context) {
      const script = "umask 077; mkdir closed; echo secret > closed/file; echo secret > file";
      const root = await context.sandbox.user("root");
      await context.succeed(script, { user: "root", cwd: context.user.home });
      for (const attempt of [
        "cat file",
        "ls closed",
        "echo x >> file",
        "kill -9 1",
        'ls "$1"/.',
        'echo x > "$1/new"',
      ]) {
        const { exit, stdout } = await context.shell(attempt, { args: [root.home] });
        assert.notEqual(exit.code, 0, `${attempt} succeeded`);
        assert.equal(stdout.toString(), "", attempt);
      }
      await context.refuses(context.start("true", { user: "nobody-of-that-name" }), "unauthenticated");
    },
  },
  {
    name: "written files and their new parents belong to the user that was named",
    group: "files",
    needs: ["accounts"],
    async run(context) {
      const { files } = context.sandbox;
      const root = await context.sandbox.user("root");
      for (const user of [context.user, root]) {
        const options = { user: user.name };
        const path = context.home(`of-${user.name}/below`);
        const file = await files.write(`${path}/file`, nothing(), options);
        const large = await files.write(`${path}/large`, much(), options);
        const made = await files.makeDir(`${path}/made/dir`, options);
        const moved = await files.move(`${path}/file`, `${path}/moved/file`, options);
        const parents = [];
        for (const name of ["", "/made", "/moved"]) parents.push(await files.stat(`${path}${name}`));
        for (const info of [file, large, made, moved, ...parents]) {
          assert.deepEqual([info.uid, info.gid, info.owner], [user.uid, user.gid, user.name], info.path);
        }
        const seen = await context.succeed('ls -ldn below below/large | tr -s " " | cut -d " " -f 3,4', {
          cwd: context.home(`of-${user.name}`),
        });
        assert.equal(seen, `${user.uid} ${user.gid}\n`.repeat(2));
      }
      for (const refused of [
        () => files.write(context.home("new"), nothing(), { user: "nobody-of-that-name" }),
        () => files.makeDir(context.home("new"), { user: "nobody-of-that-name" }),
      ]) {
        await context.refuses(refused, ["unauthenticated", "not_found", "invalid_argument"]);
      }
      await context.refuses(files.stat(context.home("new")), "not_found");
    },
  },
  {
    name: "owners have the names that the sandbox's own files give them",
    group: "files",
    needs: ["accounts", "isolation"],
    async run(context) {
      await context.succeed(
        'echo x > named; echo x > unnamed; chown 4711:4712 named; chown 4713:4714 unnamed; echo "conformance:x:4711:4711::/:/bin/sh" >> /etc/passwd; echo "conformists:x:4712:" >> /etc/group',
        { user: "root", cwd: context.user.home },
      );
      const named = await context.sandbox.files.stat(context.home("named"));
      assert.deepEqual([named.owner, named.group, named.uid], ["conformance", "conformists", 4711]);
      const unnamed = await context.sandbox.files.stat(context.home("unnamed"));
      assert.deepEqual([unnamed.owner, unnamed.group], ["4713", "4714"]);
      assert.equal(await idOf(context, "conformance"), "4711\n");
    },
  },
];

async function idOf(context: ConformanceContext, user: string): Promise<string> {
  return context.succeed("id -u", { user, cwd: "/" });
}

function inOrder(ids: string): string[] {
  return [...new Set(ids.trim().split(/\s+/))].toSorted();
}

async function* nothing(): AsyncGenerator<Uint8Array> {}

async function* much(): AsyncGenerator<Uint8Array> {
  for (let index = 0; index < 10; index++) yield Buffer.alloc(65_536);
}
