import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { type TarEntry, tarArchive } from "@coppice/core/testing";
import { BuildHost, type Step, WITHOUT_BUILDS } from "../testing/build-host.js";
import { parseCopy } from "./copy-step.js";

const ARGUMENTS: readonly (readonly [args: readonly string[], expected: readonly unknown[]])[] = [
  [
    ["a/b.txt", "x"],
    ["/a/b.txt", "/home/user/x", undefined, ""],
  ],
  [
    ["./a/", "x/"],
    ["/a/", "/home/user/x/", undefined, ""],
  ],
  [
    ["folder/*", "/x"],
    ["/folder/", "/x", undefined, ""],
  ],
  [
    ["*.txt", "."],
    ["/", "/home/user", undefined, ""],
  ],
  [
    ["src/**/*.{ts,tsx}", "/"],
    ["/src/", "/", undefined, ""],
  ],
  [
    ["a/file?.txt", "/x/../y"],
    ["/a/", "/y", undefined, ""],
  ],
  [
    ["a/[bc].txt", "./"],
    ["/a/", "/home/user/", undefined, ""],
  ],
  [
    ["../etc", "/x"],
    ["/etc", "/x", undefined, ""],
  ],
  [
    ["a", "b", "me", "755"],
    ["/a", "/home/user/b", "me:me", "755"],
  ],
  [
    ["a", "b", "me:us", "0644"],
    ["/a", "/home/user/b", "me:us", "0644"],
  ],
  [
    ["a", "b", "1000", ""],
    ["/a", "/home/user/b", "1000:1000", ""],
  ],
];

it("the arguments of COPY are a source without patterns, a destination, an owner and a mode", () => {
  for (const [args, expected] of ARGUMENTS) {
    const { source, destination, owner, mode } = parseCopy({ type: "copy", args }, "/home/user");
    assert.deepEqual([source, destination, owner, mode], expected, args.join(" "));
  }
  const refused: readonly (readonly [args: readonly string[], message: RegExp])[] = [
    [[], /^COPY requires a local path and a container path argument$/],
    [["a"], /^COPY requires a local path and a container path argument$/],
    [["a\0", "b"], /NUL byte$/],
    [["a", "b", "-x"], /^invalid owner '-x'$/],
    [["a", "b", "a:b:c"], /^invalid owner/],
    [["a", "b", "$(id)"], /^invalid owner/],
    [["a", "b", "", "u+x"], /^invalid mode 'u\+x'$/],
    [["a", "b", "", "888"], /^invalid mode/],
  ];
  for (const [args, message] of refused) {
    assert.throws(() => parseCopy({ type: "copy", args }, "/"), { name: "BuildFailure", message });
  }
});

interface Case {
  readonly name: string;
  readonly archive: readonly TarEntry[];
  /** Arguments of COPY. */
  readonly copy: readonly string[];
  /** Run by root before. */
  readonly given?: string;
  /** Run by root after, in /at. */
  readonly look: string;
  readonly finds: string;
}

const file = (name: string, body = name, mode = 0o644): TarEntry => ({
  name,
  body,
  mode,
  uid: 4321,
  gid: 4321,
});
const directory = (name: string, mode = 0o755): TarEntry => ({
  name: `${name}/`,
  type: "5",
  mode,
  uid: 4321,
});
const link = (name: string, to: string): TarEntry => ({ name, type: "2", link: to });
const OWNERS = "find . -mindepth 1 | sort | xargs stat -c '%n %U:%G %a'";

const CASES: readonly Case[] = [
  {
    name: "a file becomes the destination, whose new parents are root's",
    archive: [file("test.txt")],
    copy: ["test.txt", "dest/file.txt"],
    look: `cat dest/file.txt; echo; ${OWNERS}`,
    finds: "test.txt\n./dest root:root 755\n./dest/file.txt user:user 644\n",
  },
  {
    name: "a file comes into a new directory where there is a slash",
    archive: [file("test.sh", "x", 0o755)],
    copy: ["./test.sh", "a/b/c/"],
    look: OWNERS,
    finds: "./a root:root 755\n./a/b root:root 755\n./a/b/c root:root 755\n./a/b/c/test.sh user:user 755\n",
  },
  {
    name: "a file comes into an existing directory",
    archive: [file("a/test.sh")],
    given: "mkdir dest; ln -s dest linked",
    copy: ["a/test.sh", "linked"],
    look: "echo dest/*; test -L linked && echo linked",
    finds: "dest/test.sh\nlinked\n",
  },
  {
    name: "a file replaces a file, and a link to a file",
    archive: [file("new")],
    given: "echo old > one; echo kept > two; ln -s two link",
    copy: ["new", "link"],
    look: "test -L link || cat link; echo; cat two",
    finds: "new\nkept\n",
  },
  {
    name: "links stay links, also broken and absolute ones",
    archive: [directory("app"), link("app/abs", "/nowhere/x"), link("app/rel", "file"), file("app/file")],
    copy: ["app", "dest", "root", "600"],
    look: "readlink dest/abs; readlink dest/rel; stat -c '%U %a' dest/file; stat -c %U dest/rel",
    finds: "/nowhere/x\nfile\nroot 600\nroot\n",
  },
  {
    name: "a link alone keeps its target, and gets the owner",
    archive: [link("link.txt", "/etc/passwd")],
    copy: ["link.txt", "new/", "", "777"],
    look: "readlink new/link.txt; stat -c %U new/link.txt; stat -c '%U %a' /etc/passwd",
    finds: "/etc/passwd\nuser\nroot 644\n",
  },
  {
    name: "the contents of a directory are copied, dotfiles included, and a new destination is the owner's",
    archive: [
      directory("app", 0o700),
      file("app/.dot"),
      directory("app/.hidden"),
      file("app/.hidden/x"),
      file("app/a b\n*"),
    ],
    copy: ["app/", "/at/dest"],
    look: "cd dest; ls -A | wc -l; cat .dot .hidden/x; echo; stat -c '%U %a' . .hidden",
    // busybox shows a line feed of a name as another character.
    finds: "3\napp/.dotapp/.hidden/x\nuser 755\nuser 755\n",
  },
  {
    name: "a directory is merged into another, whose own metadata stays",
    archive: [
      directory("etc", 0o700),
      file("etc/motd", "new"),
      directory("etc/profile.d", 0o700),
      file("etc/profile.d/b.sh"),
    ],
    given:
      "mkdir -p etc/profile.d; chmod 750 etc; chmod 711 etc/profile.d; touch etc/profile.d/a.sh; echo old > etc/motd",
    copy: ["etc/", "etc/"],
    look: `${OWNERS}; cat etc/motd`,
    finds:
      "./etc root:root 750\n./etc/motd user:user 644\n./etc/profile.d root:root 711\n" +
      "./etc/profile.d/a.sh root:root 644\n./etc/profile.d/b.sh user:user 644\nnew",
  },
  {
    name: "a link to a directory is followed, and one to a file is replaced",
    archive: [file("lib/mylib.so"), file("resolv.conf")],
    given: "mkdir -p usr/lib; ln -s usr/lib lib; echo kept > real; ln -s real resolv.conf",
    copy: [".", "."],
    look: "readlink lib; echo usr/lib/*; cat real; test -L resolv.conf || cat resolv.conf",
    finds: "usr/lib\nusr/lib/mylib.so\nkept\nresolv.conf",
  },
  {
    name: "patterns are the client's: what is below the directory before them is copied",
    archive: [file("src/a.js"), file("src/deep/b.js"), file("other.txt")],
    copy: ["src/**/*.js", "dest"],
    look: "find . -type f | sort",
    finds: "./dest/a.js\n./dest/deep/b.js\n",
  },
  {
    name: "the named entry is copied, and not its neighbours",
    archive: [file("project/components/x"), file("project/utils/y"), file("project/z")],
    copy: ["project/utils", "out"],
    look: "find . -type f",
    finds: "./out/y\n",
  },
  {
    name: "a mode is for everything that is copied, and an owner may be a name or a number",
    archive: [directory("app"), directory("app/in"), file("app/in/x", "x", 0o755)],
    given: "mkdir dest",
    copy: ["app", "dest", "nobody:root", "0500"],
    look: OWNERS,
    finds: "./dest root:root 755\n./dest/in nobody:root 500\n./dest/in/x nobody:root 500\n",
  },
  {
    name: "names that look like options are names",
    archive: [directory("-rf"), file("-rf/--help"), file("-rf/-x")],
    copy: ["-rf", "-dest"],
    look: "ls -- -dest",
    finds: "--help\n-x\n",
  },
];

describe("COPY", { skip: WITHOUT_BUILDS, timeout: 240_000, concurrency: 1 }, () => {
  let host: BuildHost;
  before(async () => {
    host = await BuildHost.open();
  });
  after(() => host[Symbol.asyncDispose]());

  it("merges, replaces and follows as Docker does", async (t) => {
    for (const [at, { name, archive, copy, given, look, finds }] of CASES.entries()) {
      await t.test(name, async () => {
        // Clients send both.
        const hash = host.upload(archive, { gzip: at % 2 === 0 });
        const { result } = await host.build({
          steps: [
            ["RUN", "mkdir /at", "root"],
            ["WORKDIR", "/at"],
            ["RUN", given ?? "true", "root"],
            [at % 2 === 0 ? "COPY" : "add", ...copy, hash],
          ],
        });
        assert.equal(await host.run(result, `cd /at; ${look}`), finds);
        assert.equal(await host.run(result, "echo /.b*"), "/.b*\n");
      });
    }
  });

  async function failureOf(...steps: readonly Step[]): Promise<string> {
    const error = await host.start({ steps }).run.then(
      () => new Error("it did not fail"),
      (failure: unknown) => failure as Error,
    );
    assert.equal(error.name, "BuildFailure", error.stack);
    return error.message;
  }

  it("fails with the reason", async () => {
    const hash = host.upload([file("a/b.txt")]);
    const unknown = "0".repeat(64);
    assert.equal(await failureOf(["COPY", "a", "b"]), "COPY requires files hash to be set");
    assert.equal(await failureOf(["ADD", "a", "b", unknown]), "ADD: the files of 'a' were not uploaded");
    assert.equal(await failureOf(["COPY", "a/c.txt", "b", hash]), "source path does not exist: a/c.txt");
    assert.equal(
      await failureOf(["COPY", "/Users/me/b.txt", "b", hash]),
      "source path does not exist: /Users/me/b.txt",
    );
    assert.match(
      await failureOf(["COPY", "a/b.txt", "b", "nobody-here", hash]),
      /^failed to move files in sandbox: exit status 1: chown: /,
    );
    assert.match(
      await failureOf(["RUN", "mkdir -p dest/b.txt"], ["COPY", "a", "dest", hash]),
      /^failed to move files in sandbox: exit status 1: mv: /,
    );
  });

  it("unpacks hostile archives where nobody else is", async () => {
    const hostile: readonly (readonly TarEntry[] | Buffer)[] = [
      [{ name: "../../../escaped", body: "x" }],
      [link("out", "/"), file("out/escaped")],
      [{ name: "device", type: "3", device: [1, 1] }],
      [{ name: "hard", type: "1", link: "/etc/passwd" }],
      [{ name: "long", size: 2 ** 33, body: "x" }],
      Buffer.from("no archive at all"),
      Buffer.alloc(0),
    ];
    const passwd = await host.run((await host.build()).result, "md5sum /etc/passwd");
    for (const [at, archive] of hostile.entries()) {
      const hash = host.upload(archive, { gzip: at % 2 === 0 });
      const { run } = host.start({ steps: [["COPY", ".", "dest", hash]] });
      const result = await run.catch((error: unknown) => {
        assert.match(
          String(error),
          /^BuildFailure: (failed to extract files|failed to move files|source path)/,
          String(at),
        );
        return undefined;
      });
      if (result !== undefined) assert.equal(await host.run(result, "md5sum /etc/passwd"), passwd);
    }
    const broken = host.upload(tarArchive([file("x", "y".repeat(100_000))]));
    host.damage(broken);
    assert.match(await failureOf(["COPY", ".", "dest", broken]), /^failed to extract files: /);
    assert.deepEqual(await host.leftovers(), []);
  });

  it("refuses files that are larger, unpacked, than allowed", async () => {
    await using small = await BuildHost.open({ builds: { maxCopy: "1MiB" } });
    const hash = small.upload([file("zeros", "\0".repeat(4 * 2 ** 20))]);
    const { run } = small.start({ steps: [["COPY", "zeros", "dest", hash]] });
    await assert.rejects(run, { message: "failed to extract files: they have more than 1048576 bytes" });
    assert.deepEqual(await small.leftovers(), []);
  });

  it("copies ten thousand files without taking memory for each", async () => {
    const many = Array.from({ length: 10_000 }, (_, at) => file(`many/${at % 100}/${at}`, "x".repeat(1_000)));
    const hash = host.upload(many);
    const steps: readonly Step[] = [
      ["RUN", "mkdir -p dest/7"],
      ["COPY", "many", "dest", hash],
    ];
    globalThis.gc?.();
    const before = process.memoryUsage();
    const { result } = await host.build({ steps });
    globalThis.gc?.();
    const now = process.memoryUsage();
    const grownBy = now.heapUsed + now.external - before.heapUsed - before.external;
    assert.ok(grownBy < 64 * 2 ** 20, `memory grew by ${grownBy} bytes`);
    assert.equal(await host.run(result, "find ~user/dest -type f -user user | wc -l"), "10000\n");
  });
});
