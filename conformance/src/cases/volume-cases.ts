import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import type { ErrorCode, Mount, SandboxSpec, VolumeId } from "@coppice/core/backend";
import type { ConformanceCase } from "../kit/conformance-case.js";
import { FACTS } from "../kit/facts.js";

const REFUSALS: readonly ErrorCode[] = ["not_found", "invalid_argument", "failed_precondition"];

/** Promises of a backend with the facet `volumes`. */
export const volumeCases: readonly ConformanceCase[] = [
  {
    name: "a volume is the default user's, and what one sandbox writes others see at once",
    group: "facets",
    needs: ["volumes"],
    async run(context) {
      const volume = await context.volume();
      const [one, other] = [
        await context.provision(having(volume, "/data")),
        await context.provision(having(volume, "/deep/in/side")),
      ];
      assert.equal(
        await context.succeed(`${FACTS}; facts /data | cut -d ' ' -f 1,4; ls -A /data`, { in: one }),
        "755 user\n",
      );
      await context.succeed("mkdir /data/d && echo one > /data/d/file", { in: one });
      assert.equal(await context.succeed("cat /deep/in/side/d/file", { in: other }), "one\n");
      await context.succeed("echo other >> /deep/in/side/d/file", { in: other });
      assert.equal((await context.read("/data/d/file", one)).toString(), "one\nother\n");
      const { uid } = context.user;
      await other.files.write("/deep/in/side/written", bytes("by files"));
      const written = await one.files.stat("/data/written");
      assert.deepEqual([written.uid, written.sizeBytes], [uid, 8]);
      await one.files.remove("/data/d");
      await context.succeed("test ! -e /deep/in/side/d && test -e /deep/in/side/written", { in: other });
    },
  },
  {
    name: "a volume outlives its sandboxes, and reports its size",
    group: "facets",
    needs: ["volumes"],
    async run(context) {
      const volume = await context.volume();
      const first = await context.provision(having(volume, "/home/user/kept"));
      await context.succeed("head -c 1048576 /dev/zero > kept/big", { in: first });
      await first.destroy();
      const usage = await context.backend.volumes?.usage(volume);
      assert.ok(usage !== undefined && usage >= 1_048_576, `it says that it holds ${usage} bytes`);
      const second = await context.provision(having(volume, "/home/user/kept"));
      assert.equal(
        await context.succeed(`${FACTS}; facts kept/big | cut -d ' ' -f 6`, { in: second }),
        "1048576\n",
      );
    },
  },
  {
    name: "a volume that is mounted read-only is not written there, and changes when others write it",
    group: "facets",
    needs: ["volumes"],
    async run(context) {
      const volume = await context.volume();
      const writer = await context.provision(having(volume, "/data"));
      const reader = await context.provision(having(volume, "/data", true));
      await context.succeed("echo text > /data/file", { in: writer });
      assert.equal(await context.succeed("cat /data/file", { in: reader }), "text\n");
      for (const user of [context.user.name, "root"]) {
        for (const script of ["echo x > /data/file", "touch /data/new", "rm /data/file", "chmod 777 /data"]) {
          const { exit } = await context.shell(script, { in: reader, user });
          assert.notEqual(exit.code, 0, `${script} as ${user}`);
        }
      }
      await context.refuses(reader.files.write("/data/new", bytes("x")), [
        "permission_denied",
        "failed_precondition",
      ]);
      assert.equal(await context.succeed("ls -A /data; cat /data/file", { in: writer }), "file\ntext\n");
    },
  },
  {
    name: "volumes are listed until they are removed, removing one twice is no error, and a missing one is not mounted",
    group: "facets",
    needs: ["volumes"],
    async run(context) {
      const { volumes } = context.backend;
      assert.ok(volumes);
      const volume = await context.volume();
      assert.ok((await volumes.list()).includes(volume));
      await context.refuses(volumes.make({ id: volume, sizeMiB: 64 }), "already_exists");
      await volumes.remove(volume);
      await volumes.remove(volume);
      assert.ok(!(await volumes.list()).includes(volume));
      await context.refuses(volumes.usage(volume), "not_found");
      await context.refuses(() => context.provision(having(volume, "/data")), REFUSALS);
    },
  },
  {
    name: "a snapshot of a sandbox contains nothing of its volumes, and can be used with them",
    group: "facets",
    needs: ["volumes", "snapshots"],
    async run(context) {
      const volume = await context.volume();
      const source = await context.provision(having(volume, "/home/user/data"));
      await context.succeed("echo kept > data/file && echo own > file", { in: source });
      const id = newId();
      await source.snapshots?.take(id);
      try {
        const without = await context.provision({ snapshot: id });
        assert.equal(await context.succeed("cat file; ls -A data", { in: without }), "own\n");
        const fork = await context.provision({ snapshot: id, ...having(volume, "/home/user/data") });
        assert.equal(await context.succeed("cat file data/file", { in: fork }), "own\nkept\n");
      } finally {
        await context.backend.snapshots?.remove(id);
      }
    },
  },
  {
    name: "a volume is not mounted where a link leads, and nothing is left of the try",
    group: "isolation",
    needs: ["volumes", "snapshots", "isolation"],
    async run(context) {
      const canary = await context.canary();
      const volume = await context.volume();
      const source = await context.provision();
      const links = ["/direct", "/within/link", "/to-proc"];
      await context.succeed(
        `ln -s '${canary.directory}' /direct; mkdir /within; ln -s /../../../tmp /within/link; ` +
          "ln -s /proc/1/root /to-proc; echo text > /file",
        { in: source, user: "root" },
      );
      const id = newId();
      await source.snapshots?.take(id);
      try {
        for (const path of [...links, ...links.map((link) => `${link}/below`), "/file", "/file/below"]) {
          await context.refuses(
            () => context.provision({ snapshot: id, ...having(volume, path) }),
            "invalid_argument",
          );
        }
      } finally {
        await context.backend.snapshots?.remove(id);
      }
      await canary.verify();
    },
  },
  {
    name: "files that a sandbox plants in a volume lead others to nothing of the host, and give no privileges",
    group: "isolation",
    needs: ["volumes", "isolation", "accounts"],
    async run(context) {
      const canary = await context.canary();
      const volume = await context.volume();
      const planter = await context.provision(having(volume, "/data"));
      const finder = await context.provision(having(volume, "/data"));
      await context.succeed(
        `ln -s '${canary.directory}' /data/link && cp /usr/bin/id /data/id && chown root /data/id && ` +
          "chmod 4755 /data/id && { mknod /data/null c 1 3 || true; } && mkdir /data/own && chmod 700 /data/own",
        { in: planter, user: "root" },
      );
      for (const user of [context.user.name, "root"]) {
        const { exit } = await context.shell("cat /data/link/secret.txt || touch /data/link/new", {
          in: finder,
          user,
        });
        assert.notEqual(exit.code, 0, `as ${user}`);
      }
      await context.refuses(context.read("/data/link/secret.txt", finder), [
        "not_found",
        "permission_denied",
      ]);
      assert.equal(await context.succeed("/data/id -u", { in: finder }), `${context.user.uid}\n`);
      const { exit } = await context.shell("test -e /data/null && echo x > /data/null", { in: finder });
      assert.notEqual(exit.code, 0, "a device in a volume can be used");
      await canary.verify();
    },
  },
];

function having(volume: VolumeId, path: string, readOnly = false): Pick<SandboxSpec, "mounts"> {
  return { mounts: [{ volume, path, readOnly } satisfies Mount] };
}

async function* bytes(text: string): AsyncGenerator<Uint8Array> {
  yield Buffer.from(text);
}

function newId(): string {
  return `conform${randomBytes(8).toString("hex")}`;
}
