import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import type { ErrorCode, ImageId, Sandbox, SandboxImage } from "@coppice/core/backend";
import { extendedHeader, type TarEntry } from "@coppice/core/testing";
import { CaseSkipped, type ConformanceCase } from "../kit/conformance-case.js";
import type { ConformanceContext } from "../kit/conformance-context.js";

const USER = "user";
const MISSING: readonly ErrorCode[] = ["not_found", "invalid_argument", "failed_precondition"];

/** Promises of a backend with the facet `images`, and of its sandboxes that have one. */
export const imageCases: readonly ConformanceCase[] = [
  {
    name: "a sandbox of an image has its files, and its default user and directory",
    group: "facets",
    needs: ["images"],
    async run(context) {
      const id = await context.image([
        [{ name: "srv/work/", type: "5", uid: 1234 }, file("etc/kept", "lower"), file("etc/gone", "lower")],
        [file("etc/kept", "upper", 0o640), file("etc/.wh.gone"), file("srv/work/here", "x")],
      ]);
      const sandbox = await context.provision({ image: { id, user: "root", workdir: "/srv/work" } });
      const of = { in: sandbox };
      assert.equal(await context.succeed("echo *; id -u; cat /etc/kept", of), "here\n0\nupper");
      assert.equal(
        await context.succeed("echo * /etc/g* /etc/kept", { ...of, cwd: "/srv" }),
        "work /etc/group /etc/kept\n",
      );
      const user = await sandbox.user(USER);
      assert.deepEqual([user.uid, user.home, user.workdir], [1234, "/home/user", "/srv/work"]);
      assert.equal((await sandbox.user()).name, "root");
      const found = await sandbox.files.stat("/etc/kept");
      assert.deepEqual([found.mode, found.uid], [0o640, 0]);
      assert.equal((await sandbox.files.stat("/srv/work")).uid, 1234);
      await context.succeed("echo own > mine", { ...of, user: USER });
      const plain = await context.provision({ image: { id, user: USER } });
      assert.equal((await plain.user()).workdir, undefined);
      assert.equal(await context.succeed("id -u; ls -A /srv/work", { in: plain }), "1234\nhere\n");
    },
  },
  {
    name: "images are listed with their size until they are removed, and removing one twice is no error",
    group: "facets",
    needs: ["images"],
    async run(context) {
      const { images } = context.backend;
      assert.ok(images);
      const id = await context.image([[file("etc/big", randomBytes(1_048_576))]]);
      assert.ok((await images.list()).includes(id));
      const usage = await images.usage(id);
      assert.ok(usage >= 1_048_576, `it says that it holds ${usage} bytes`);
      const sandbox = await context.provision({ image: { id, user: USER } });
      await images.remove(id);
      await images.remove(id);
      assert.ok(!(await images.list()).includes(id));
      await context.refuses(images.usage(id), "not_found");
      await context.refuses(() => context.provision({ image: { id, user: USER } }), MISSING);
      assert.equal(await context.succeed("cat /etc/group > copy; echo *", { in: sandbox }), "copy\n");
    },
  },
  {
    name: "a committed sandbox becomes an image, whose sandboxes have what it changed and nothing that it removed",
    group: "facets",
    needs: ["images"],
    async run(context) {
      const lower = await context.image([[file("srv/old/a"), file("srv/old/b"), file("etc/kept", "lower")]]);
      const script =
        "rm -r /srv/old && mkdir /srv/old && echo new > /srv/old/c && rm /etc/group && ln -s kept /etc/link && " +
        "echo upper > /etc/kept && chmod 640 /etc/kept && chown user /srv/old/c && chmod 4711 /bin/sleep";
      const upper = await commit(context, { id: lower, user: "root" }, script);
      const sandbox = await context.provision({ image: { id: upper, user: USER } });
      assert.equal(
        await context.succeed("ls -A /srv/old; echo /etc/g*; cat /etc/link /srv/old/c", {
          in: sandbox,
          user: "root",
        }),
        "c\n/etc/g*\nupper\nnew\n",
      );
      const modes = ["/etc/kept", "/srv/old/c", "/bin/sleep"].map((path) => sandbox.files.stat(path));
      const facts = (await Promise.all(modes)).map(({ rawMode, uid }) => [
        (rawMode & 0o7777).toString(8),
        uid,
      ]);
      assert.deepEqual(facts, [
        ["640", 0],
        ["644", 1234],
        ["4711", 0],
      ]);
      // What is above in a chain hides what is below it again.
      const top = await commit(
        context,
        { id: upper, user: "root" },
        "rm -r /srv/old; echo again > /etc/group",
      );
      await context.backend.images?.remove(lower);
      await context.backend.images?.remove(upper);
      const last = await context.provision({ image: { id: top, user: USER } });
      assert.equal(await context.succeed("ls -A /srv; cat /etc/group", { in: last }), "again\n");
      if (last.stopping === undefined) return;
      await last.stopping.stop();
      await context.startAnew(last);
      assert.equal(await context.succeed("ls -A /srv; cat /etc/group", { in: last }), "again\n");
    },
  },
  {
    name: "a commit ends all processes, and leaves a sandbox that can only be destroyed",
    group: "facets",
    needs: ["images"],
    async run(context) {
      const id = await context.image([]);
      const sandbox = await context.provision({ image: { id, user: USER } });
      const running = await context.start("echo up; sleep 300", { in: sandbox });
      const next = committing(sandbox);
      const upper = context.newImage();
      await next.commit(upper);
      const { signal } = await context.within(2_000, "the exit is known", running.exit);
      assert.equal(signal, "SIGKILL");
      const refusals = ["unavailable", "not_found", "failed_precondition"] as const;
      await context.refuses(() => context.startProgram("/bin/sh", [], { in: sandbox }), refusals);
      await context.refuses(() => next.commit(context.newImage()), refusals);
      await sandbox.destroy();
      const after = await context.provision({ image: { id: upper, user: USER } });
      assert.equal(await context.succeed("id -u", { in: after }), "1234\n");
    },
  },
  {
    name: "a sandbox can be destroyed while it is being committed",
    group: "facets",
    needs: ["images"],
    async run(context) {
      const id = await context.image([]);
      const { images } = context.backend;
      for (let round = 0; round < 3; round++) {
        const sandbox = await context.provision({ image: { id, user: USER } });
        await context.succeed("echo x > file", { in: sandbox });
        const upper = context.newImage();
        const taking = committing(sandbox).commit(upper);
        const ended = Promise.allSettled([taking, sandbox.destroy()]);
        const [taken] = await context.within(10_000, "it is destroyed", ended);
        assert.equal((await images?.list())?.includes(upper), taken.status === "fulfilled");
      }
    },
  },
  {
    name: "a snapshot of a sandbox with an image is for others with that image, and outlives it",
    group: "facets",
    needs: ["images", "snapshots"],
    async run(context) {
      const image: SandboxImage = { id: await context.image([[file("etc/kept", "lower")]]), user: USER };
      const other: SandboxImage = { id: await context.image([]), user: USER };
      const source = await context.provision({ image });
      await context.succeed("echo own > file", { in: source });
      const snapshot = `conform${randomBytes(8).toString("hex")}`;
      await source.snapshots?.take(snapshot);
      try {
        await context.refuses(() => context.provision({ image: other, snapshot }), MISSING);
        await context.refuses(() => context.provision({ snapshot }), MISSING);
        const fork = await context.provision({ image, snapshot });
        assert.equal(await context.succeed("cat file /etc/kept", { in: fork }), "own\nlower");
        await Promise.all([source.destroy(), fork.destroy()]);
      } finally {
        await context.backend.snapshots?.remove(snapshot);
      }
    },
  },
  {
    name: "no name in a layer leads out of the root, and devices are left out",
    group: "isolation",
    needs: ["images"],
    async run(context) {
      const canary = await context.canary();
      const out = canary.directory.slice(1);
      const away = `${"../".repeat(20)}${out}`;
      const id = await context.image([
        [
          file(`${away}/secret.txt`, "changed"),
          file(`/${out}/new`, "new"),
          { name: "absolute", type: "2", link: `/${out}` },
          file("absolute/secret.txt", "changed"),
          { name: "relative", type: "2", link: away },
          file("relative/new", "new"),
          { name: "etc/null", type: "3", device: [1, 3] },
          { name: "etc/disk", type: "4", device: [8, 0], mode: 0o666 },
        ],
      ]);
      await canary.verify();
      const sandbox = await context.provision({ image: { id, user: "root" } });
      for (const name of ["null", "disk"]) {
        const found = await sandbox.files.stat(`/etc/${name}`).catch(() => undefined);
        assert.ok(
          found === undefined || (found.kind === "file" && found.sizeBytes === 0),
          `there is a device ${name}`,
        );
      }
      // A hard link to a file of the host would be that file.
      for (const link of [away, canary.file, `/proc/self/root${canary.file}`]) {
        const layers = [[{ name: "hard", type: "1", link } satisfies TarEntry]];
        await context.refuses(() => context.image(layers), "invalid_argument");
      }
      await canary.verify();
    },
  },
  {
    name: "an image of too many bytes or files is refused, also when they are compressed well or have holes",
    group: "isolation",
    needs: ["images"],
    async run(context) {
      const small = { maxBytes: 64 * 2 ** 20, maxEntries: 1_000 };
      const zeros = Buffer.alloc(16 * 2 ** 20);
      const many = Array.from({ length: 1_500 }, (_, index) => file(`many/${index}`));
      const holes = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.realsize": `${10 * 2 ** 30}`,
      };
      const refused: readonly (readonly TarEntry[])[] = [
        Array.from({ length: 10 }, (_, index) => file(`zeros${index}`, zeros)),
        many,
        [extendedHeader({ ...holes, "GNU.sparse.name": "holes" }), file("holes", sparse(10 * 2 ** 30))],
      ];
      for (const layer of refused) {
        await context.refuses(
          () => context.image([layer], small),
          ["resource_exhausted", "invalid_argument"],
        );
      }
      await context.image([many.slice(0, 500)], small);
    },
  },
  {
    name: "an unpacking that is given up leaves nothing",
    group: "facets",
    needs: ["images"],
    async run(context) {
      const { images } = context.backend;
      await context.image([]);
      const before = await images?.list();
      for (const delayMs of [0, 1, 10, 50]) {
        const signal = AbortSignal.timeout(delayMs);
        const unpacked = await context.image([], { signal }).catch((error: unknown) => {
          assert.equal(error, signal.reason);
          return undefined;
        });
        if (unpacked !== undefined) await images?.remove(unpacked);
        assert.deepEqual(await images?.list(), before);
      }
    },
  },
  {
    name: "sandboxes with an image have the declared facet `committing`",
    group: "facets",
    needs: ["images"],
    async run(context) {
      const { facets } = context.subject;
      const sandbox = await context.provision({ image: { id: await context.image([]), user: USER } });
      if (facets === undefined) return;
      assert.equal(
        sandbox.committing !== undefined,
        facets.includes("committing"),
        "declared and present differ",
      );
      assert.equal(context.sandbox.committing, undefined, "a sandbox without an image can be committed");
    },
  },
];

function file(name: string, body: string | Uint8Array = "", mode = 0o644): TarEntry {
  return { name, body, mode };
}

/** Body of a sparse file (PAX 1.0) of one byte at its end. */
function sparse(size: number): Buffer {
  const map = Buffer.from(`1\n${size - 1}\n1\n`);
  return Buffer.concat([map, Buffer.alloc(512 - map.byteLength), Buffer.from("x")]);
}

function committing(sandbox: Sandbox): NonNullable<Sandbox["committing"]> {
  if (sandbox.committing === undefined) throw new CaseSkipped("its sandboxes cannot be committed");
  return sandbox.committing;
}

/** Makes an image of a sandbox that ran a script. */
async function commit(context: ConformanceContext, image: SandboxImage, script: string): Promise<ImageId> {
  const sandbox = await context.provision({ image });
  await context.succeed(script, { in: sandbox });
  const id = context.newImage();
  await committing(sandbox).commit(id);
  await sandbox.destroy();
  return id;
}
