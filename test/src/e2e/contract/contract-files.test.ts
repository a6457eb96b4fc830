import assert from "node:assert/strict";
import { it } from "node:test";
import { gunzipSync, gzipSync } from "node:zlib";
import { SandboxError } from "@coppice/core";
import { Sandbox } from "e2b";
import { basicUserHeader, envdClient } from "../../harness/clients/envd-client.js";
import type { Answer } from "../../harness/clients/exchange.js";
import { mountInside, reasonWithoutMounts } from "../../harness/host/mount-inside.js";
import { OCTETS, filesRequests, query, refusal } from "./files-requests.js";
import { onEachBackend } from "../../harness/server/on-each-backend.js";

const FORM = { "content-type": "multipart/form-data; boundary=X" };
const withoutMounts = reasonWithoutMounts();

/** The parts of a form as undici writes them: filenames with their directories, raw UTF-8. */
function form(parts: readonly (readonly [filename: string, content: string, field?: string])[]): string {
  const encoded = parts.map(
    ([filename, content, field = "file"]) =>
      `--X\r\nContent-Disposition: form-data; name="${field}"; filename="${filename}"\r\nContent-Type: application/octet-stream\r\n\r\n${content}\r\n`,
  );
  return `${encoded.join("")}--X--\r\n`;
}

/** Tables C.4 to C.7 and D.5 of E2B's interface, row by row. Titles are the rows; docs/compatibility.md lists them. */
onEachBackend("files by their contract", ({ backend, server, sandbox }) => {
  const { call, get, post, put, sh, stat, envd } = filesRequests(server, sandbox);
  const names = async (path: string): Promise<readonly string[]> =>
    (await sandbox().files.list(path)).map(({ name }) => name);
  const assertRefused = (answer: Answer, status: number, message: string | RegExp, what = "") => {
    const body = answer.json() as { readonly code: number; readonly message: string };
    assert.deepEqual([answer.status, body.code], [status, status], `${what} ${answer.text}`);
    assert.equal(answer.headers["content-type"], "application/json");
    if (typeof message === "string") assert.equal(body.message, message, what);
    else assert.match(body.message, message, what);
  };

  it("C.4 GET /files, every refusal, in the order of the checks", async () => {
    await put("plain.txt", "plain");
    const noEncoding = { "accept-encoding": "br, identity;q=0" };
    const rows = [
      [
        { path: "~other/x", username: "nobody-here" },
        401,
        "error looking up user 'nobody-here': user: unknown user nobody-here",
      ],
      [{ path: "~other/x" }, 400, "cannot expand user-specific home dir"],
      [{ path: "absent" }, 404, "path '/home/user/absent' does not exist"],
      [{ path: "/no/../such" }, 404, "path '/no/../such' does not exist"],
      [{ path: "~" }, 400, "path '/home/user' is a directory"],
      [{}, 400, "path '/home/user' is a directory"],
      [
        { path: "plain.txt" },
        406,
        "error parsing Accept-Encoding: no acceptable encoding found, supported: [gzip]",
      ],
    ] as const;
    for (const [parameters, status, message] of rows) {
      assertRefused(await get(parameters, noEncoding), status, message, JSON.stringify(parameters));
    }
    const stranger = envdClient({ url: server().url, sandboxId: sandbox().sandboxId });
    const first = { headers: noEncoding };
    assertRefused(
      await stranger.send("GET", query({ path: "~other/x", username: "nobody-here" }), first),
      401,
      "missing signature query parameter",
    );
  });

  it("C.4 GET /files, memory of a process", async () => {
    for (const [user, status, message] of [
      ["user", 403, /^error opening file '\/proc\/\d+\/mem': open \/proc\/\d+\/mem: permission denied$/],
      ["root", 400, /^read \/proc\/\d+\/mem: input\/output error$/],
    ] as const) {
      if (backend === "local-process" && user === "root") continue;
      const sleeping = await sandbox().commands.run("sleep 600", { background: true, user });
      const answer = await get({ path: `/proc/${sleeping.pid}/mem`, username: user });
      // A sandbox without isolation has no /proc.
      if (backend === "local-process") assertRefused(answer, 404, /does not exist$/);
      else assertRefused(answer, status, message);
      await sleeping.kill();
    }
    if (backend === "local-process") return;
    const written = await post(query({ path: "/proc/self/mem", username: "root" }), "x");
    assertRefused(written, 400, "path '/proc/self/mem' is not a regular file");
  });

  it("C.4 GET /files, error opening file", async ({ mock }) => {
    const { files } = server().sandboxes.get(sandbox().sandboxId).runtime;
    await put("unlucky.txt", "x");
    const failing = async () => {
      throw new SandboxError("file_operation_failed", "open /home/user/unlucky.txt: EIO");
    };
    mock.method(files, "read", failing);
    assertRefused(await get({ path: "unlucky.txt" }), 500, /^error opening file /);
  });

  it("C.4 GET /files, what the SDK raises: 400, 401, 404, 429, 500, 502", async ({ mock }) => {
    const { files } = sandbox();
    const raised = (reading: Promise<unknown>) =>
      reading.then(
        () => assert.fail("it was read"),
        ({ name, message }: Error) => `${name}: ${message}`,
      );
    assert.match(await raised(files.read("~")), /^InvalidArgumentError: .*is a directory/);
    assert.match(
      await raised(files.read("x", { user: "nobody-here" })),
      /^AuthenticationError: .*nobody-here/,
    );
    assert.match(await raised(files.read("absent")), /^FileNotFoundError: .*does not exist/);
    await put("refused.txt", "x");
    for (const [reason, expected] of [
      ["host_resources_exhausted", /^RateLimitError: /],
      ["file_operation_failed", /^SandboxError: 500: error opening file /],
    ] as const) {
      const { runtime } = server().sandboxes.get(sandbox().sandboxId);
      const reading = mock.method(runtime.files, "read", async () => {
        throw new SandboxError(reason, "no luck");
      });
      assert.match(await raised(files.read("refused.txt")), expected);
      reading.mock.restore();
    }
    const mortal = await Sandbox.create();
    await mortal.kill();
    assert.match(await raised(mortal.files.read("x")), /^TimeoutError: .*likely due to sandbox timeout/);
  });

  it("C.4 GET /files, the headers of a success", async () => {
    for (const [name, disposition, type, content] of [
      ["a.txt", "inline; filename=a.txt", "text/plain; charset=utf-8", "text"],
      ["b.html", "inline; filename=b.html", /^text\/html/, "<p>"],
      ["c.json", "inline; filename=c.json", /^application\/json/, "{}"],
      ["d.png", "inline; filename=d.png", "image/png", "no png"],
      ["sniffed", "inline; filename=sniffed", /^text\/plain/, "no name to go by"],
      ["zero", "inline; filename=zero", "application/octet-stream", "\0\u0001"],
      ["a b.txt", 'inline; filename="a b.txt"', /^text\/plain/, "x"],
      ["ü.txt", "inline; filename*=utf-8''%C3%BC.txt", /^text\/plain/, "x"],
    ] as const) {
      await put(name, content);
      const answer = await get({ path: name });
      assert.equal(answer.status, 200);
      assert.equal(answer.text, content);
      const { headers } = answer;
      assert.equal(headers.vary, "Accept-Encoding");
      assert.equal(headers["content-disposition"], disposition);
      assert.equal(headers["accept-ranges"], "bytes");
      assert.equal(headers["content-length"], String(Buffer.byteLength(content)));
      assert.ok(Math.abs(Date.parse(headers["last-modified"] ?? "") - Date.now()) < 60_000);
      if (typeof type === "string") assert.equal(headers["content-type"], type);
      else assert.match(headers["content-type"] ?? "", type);
    }
  });

  it("C.4 GET /files, ranges and conditions, which force identity", async () => {
    await put("range.txt", "0123456789");
    const ask = (headers: Record<string, string>) =>
      get({ path: "range.txt" }, { "accept-encoding": "gzip", ...headers });
    const part = await ask({ range: "bytes=2-4" });
    assert.deepEqual([part.status, part.text, part.headers["content-range"]], [206, "234", "bytes 2-4/10"]);
    assert.equal(part.headers["content-encoding"], undefined);
    assert.equal((await ask({ range: "bytes=-3" })).text, "789");
    assert.equal((await ask({ range: "bytes=8-99" })).headers["content-range"], "bytes 8-9/10");
    const several = await ask({ range: "bytes=0-1, 20-30, -2" });
    assert.equal(several.status, 206);
    assert.equal(several.headers["content-length"], String(several.body.length));
    const [, boundary = ""] =
      /^multipart\/byteranges; boundary=(\w+)$/.exec(several.headers["content-type"] ?? "") ?? [];
    const piece = (range: string, content: string) =>
      `--${boundary}\r\nContent-Range: bytes ${range}/10\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n${content}\r\n`;
    assert.equal(several.text, `${piece("0-1", "01")}${piece("8-9", "89")}--${boundary}--\r\n`);
    const beyond = await ask({ range: "bytes=10-" });
    assert.deepEqual([beyond.status, beyond.headers["content-range"]], [416, "bytes */10"]);
    assertRefused(
      await ask({ "range": "bytes=0-1", "accept-encoding": "gzip, identity;q=0" }),
      406,
      /^error parsing Accept-Encoding/,
    );
    const modified = (await ask({})).headers["last-modified"] ?? "";
    const unchanged = await ask({ "if-modified-since": modified });
    assert.deepEqual([unchanged.status, unchanged.body.length], [304, 0]);
    assert.equal((await ask({ "if-unmodified-since": "Sun, 01 Jun 2025 12:00:00 GMT" })).status, 412);
  });

  it("C.4 GET /files, gzip where it is the best that the client takes, chunked", async () => {
    const text = "compressible ".repeat(5_000);
    await put("zip.txt", text);
    for (const [accepted, isZipped] of [
      ["gzip, deflate", true],
      ["gzip;q=1.0, identity;q=0.5", true],
      ["identity, gzip;q=0.5", false],
      ["gzip;q=0", false],
      ["br", false],
      ["", false],
    ] as const) {
      const answer = await get({ path: "zip.txt" }, { "accept-encoding": accepted });
      assert.equal(answer.status, 200, accepted);
      assert.equal(answer.headers["content-encoding"], isZipped ? "gzip" : undefined, accepted);
      assert.equal((isZipped ? gunzipSync(answer.body) : answer.body).toString(), text);
      assert.equal(answer.headers["content-length"] === undefined, isZipped);
    }
  });

  it("C.4 GET /files, what the user may not read is read", { skip: oneAccount(backend) }, async () => {
    await sh("echo secret >/root/secret; chmod 600 /root/secret", basicUserHeader("root"));
    assert.equal((await get({ path: "/root/secret" })).text, "secret\n");
  });

  it(
    "C.4 GET /files, files of /proc are whole in every encoding",
    { skip: ownTreeAlone(backend) },
    async () => {
      for (const encoding of ["identity", "gzip"]) {
        const answer = await get({ path: "/proc/self/status" }, { "accept-encoding": encoding });
        const text = encoding === "gzip" ? gunzipSync(answer.body).toString() : answer.text;
        assert.match(text, /^Name:\t.*\nUmask:[^]*\nPid:/);
      }
    },
  );

  it("0.1-20 an empty file is 200, in every encoding and through the SDK", async () => {
    await put("empty.txt", "");
    const identity = await get({ path: "empty.txt" }, { "accept-encoding": "identity" });
    assert.deepEqual([identity.status, identity.headers["content-length"], identity.text], [200, "0", ""]);
    const gzip = await get({ path: "empty.txt" }, { "accept-encoding": "gzip" });
    assert.deepEqual([gzip.status, gunzipSync(gzip.body).length], [200, 0]);
    const { files } = sandbox();
    assert.equal(await files.read("empty.txt"), "");
    assert.equal((await files.read("empty.txt", { format: "bytes" })).length, 0);
    assert.equal((await files.read("empty.txt", { format: "blob" })).size, 0);
  });

  it("0.1-18 the answer to a write has exactly path, name and type", async () => {
    const written = [{ path: "/home/user/w.txt", name: "w.txt", type: "file" }];
    assert.deepEqual((await post(query({ path: "w.txt" }), "x")).json(), written);
    assert.deepEqual((await post("/files", form([["w.txt", "x"]]), FORM)).json(), written);
    const { metadata, ...bySdk } = await sandbox().files.write("w.txt", "x");
    assert.deepEqual([bySdk, metadata], [written[0], undefined]);
  });

  it("C.5 POST /files, every refusal", async () => {
    await put("a-file", "x");
    await sh("mkdir -p a-directory");
    const rows = [
      [
        "raw body without a path",
        post("/files", "x"),
        400,
        "path query parameter is required for raw body upload",
      ],
      [
        "another content type",
        post(query({ path: "x" }), "x", { "content-type": "text/plain" }),
        400,
        "unsupported content type: text/plain, expected multipart/form-data or application/octet-stream",
      ],
      [
        "another encoding",
        post(query({ path: "x" }), "x", { ...OCTETS, "content-encoding": "br" }),
        400,
        "error decompressing request body: unsupported Content-Encoding: br",
      ],
      [
        "another encoding of a form",
        post("/files", form([["x", "x"]]), { ...FORM, "content-encoding": "deflate" }),
        400,
        "error decompressing request body: unsupported Content-Encoding: deflate",
      ],
      [
        "no gzip",
        post(query({ path: "x" }), "no gzip", { ...OCTETS, "content-encoding": "gzip" }),
        400,
        /^error decompressing request body: /,
      ],
      [
        "unknown user",
        post(query({ path: "x", username: "nobody-here" }), "x"),
        401,
        "error looking up user 'nobody-here': user: unknown user nobody-here",
      ],
      [
        "somebody's home",
        post(query({ path: "~other/x" }), "x"),
        400,
        "cannot expand user-specific home dir",
      ],
      [
        "a directory",
        post(query({ path: "a-directory" }), "x"),
        400,
        "path is a directory: /home/user/a-directory",
      ],
      [
        "below a file",
        post(query({ path: "a-file/b/c" }), "x"),
        500,
        "error ensuring directories: path is a file: /home/user/a-file",
      ],
      [
        "the same path twice",
        post(
          "/files",
          form([
            ["same", "1"],
            ["./same", "2"],
          ]),
          FORM,
        ),
        400,
        /you cannot upload multiple files to the same path '\/home\/user\/same' in one upload request, only the first specified file was uploaded/,
      ],
      [
        "the same path twice by the query",
        post(
          query({ path: "one" }),
          form([
            ["a", "1"],
            ["b", "2"],
          ]),
          FORM,
        ),
        400,
        /same path '\/home\/user\/one'/,
      ],
      [
        "metadata not printable",
        post(query({ path: "x" }), "x", { ...OCTETS, "x-metadata-a": "\u00fc" }),
        400,
        /^invalid metadata: /,
      ],
      [
        "a key too long",
        post(query({ path: "x" }), "x", { ...OCTETS, [`x-metadata-${"k".repeat(247)}`]: "v" }),
        400,
        /^invalid metadata: /,
      ],
      [
        "metadata too large",
        post(query({ path: "x" }), "x", { ...OCTETS, "x-metadata-k": "v".repeat(4096 - 9) }),
        400,
        /^invalid metadata: /,
      ],
    ] as const;
    for (const [what, answer, status, message] of rows) assertRefused(await answer, status, message, what);
    assert.equal((await get({ path: "same" })).text, "1");
    assert.equal((await get({ path: "x" })).status, 404, "nothing of a refused upload is there");
  });

  it("C.5 POST /files, disk full is 507", { skip: withoutMounts }, async () => {
    const path = "/home/user/small";
    await using _ = await mountInside(server(), sandbox(), { type: "tmpfs", path, options: "size=64k" });
    await put(`${path}/old`, "as it was");
    const file = `${path}/file`;
    const message = "attempted to write 100000 bytes: not enough disk space available";
    const body = "x".repeat(100_000);
    assertRefused(await post(query({ path: file }), body), 507, message);
    assertRefused(await post(query({ path: `${path}/old` }), body), 507, message);
    assertRefused(await post("/files", form([[file, body]]), FORM), 507, message);
    await assert.rejects(sandbox().files.write(file, body), { name: "NotEnoughSpaceError" });
    assert.deepEqual(await names(path), ["old"], "nothing of it is there");
    await put(`${path}/compose`, "y".repeat(40_000));
    const composed = { source_paths: [`${path}/compose`], destination: `${path}/whole` };
    const json = { "content-type": "application/json" };
    const refused = await post("/files/compose", JSON.stringify(composed), json);
    assertRefused(refused, 507, "attempted to write 40000 bytes: not enough disk space available", "C.6");
    assert.equal((await get({ path: `${path}/old` })).text, "as it was");
  });

  it("C.5 POST /files, no inodes left is 507", { skip: withoutMounts }, async () => {
    const path = "/home/user/few";
    await using _ = await mountInside(server(), sandbox(), { type: "tmpfs", path, options: "nr_inodes=4" });
    // The fourth inode is the root's.
    for (const name of ["1", "2", "3"]) await put(`${path}/${name}`, "x");
    const message = "not enough inodes available";
    const bodies = ["", "x", "x".repeat(1_000_000)];
    // local-process stages large files on another file system, which its sandboxes do not have.
    for (const body of backend === "local-process" ? bodies.slice(0, 2) : bodies) {
      for (const name of ["file", "made/on/the/way"]) {
        assertRefused(await post(query({ path: `${path}/${name}` }), body), 507, message);
      }
    }
    assertRefused(await post("/files", form([[`${path}/file`, "x"]]), FORM), 507, message);
    await assert.rejects(sandbox().files.write(`${path}/file`, "x"), { name: "NotEnoughSpaceError" });
    await put(`${path}/3`, "what is there can be written");
    await sandbox().files.remove(`${path}/3`);
    await put(`${path}/4`, "and what there is room for");
    assert.deepEqual(await names(path), ["1", "2", "4"]);
  });

  it("C.5 POST /files, a lack of something else is no full disk", async ({ mock }) => {
    const { files } = server().sandboxes.get(sandbox().sandboxId).runtime;
    const message = "write /home/user/file: too many open files";
    const refuse = () => Promise.reject(new SandboxError("host_resources_exhausted", message));
    mock.method(files, "write", refuse);
    if (files.writeWhole !== undefined) mock.method(files as Required<typeof files>, "writeWhole", refuse);
    assertRefused(await post(query({ path: "file" }), "x"), 429, message);
  });

  it("C.5 POST /files, where the parts go: filenames with directories, as they are", async () => {
    const parts = [
      ["/tmp/contract/ü %22.txt", "1"],
      ["sub/dir/b.txt", "2"],
      ["~/c%2Fd.txt", "3"],
      ["ignored.txt", "4", "other"],
    ] as const;
    const answer = await post("/files", form(parts), FORM);
    assert.deepEqual(answer.json(), [
      { path: "/tmp/contract/ü %22.txt", name: "ü %22.txt", type: "file" },
      { path: "/home/user/sub/dir/b.txt", name: "b.txt", type: "file" },
      { path: "/home/user/c%2Fd.txt", name: "c%2Fd.txt", type: "file" },
    ]);
    assert.equal((await get({ path: "ignored.txt" })).status, 404);
    const named = await post(query({ path: "named.txt" }), form([["other.txt", "5"]]), FORM);
    assert.deepEqual(named.json(), [{ path: "/home/user/named.txt", name: "named.txt", type: "file" }]);
    const zipped = await post("/files", gzipSync(form([["zipped.txt", "6"]])), {
      ...FORM,
      "content-encoding": "gzip",
    });
    assert.equal(zipped.status, 200);
    assert.equal((await get({ path: "zipped.txt" })).text, "6");
    const mixed = { "content-type": "multipart/mixed; boundary=X" };
    assert.equal((await post("/files", form([["mixed.txt", "7"]]), mixed)).status, 200);
  });

  it(
    "C.5 POST /files, owner and mode of what is made, and of what was there",
    { skip: oneAccount(backend) },
    async () => {
      await put("/home/user/made/by/upload.txt", "x");
      const owners = await sh("stat -c '%U:%G %a' made made/by made/by/upload.txt");
      assert.equal(owners, "user:user 755\nuser:user 755\nuser:user 644\n");
      await sh(
        "echo old >there.txt; chown root:root there.txt; chmod 755 there.txt",
        basicUserHeader("root"),
      );
      await sh(
        "cp /root/there.txt /home/user/there.txt; chown root:root /home/user/there.txt; chmod 711 /home/user/there.txt",
        basicUserHeader("root"),
      );
      await put("there.txt", "new");
      assert.equal(await sh("stat -c '%U %a' there.txt; cat there.txt"), "user 711\nnew");
      await post(query({ path: "/tmp/roots.txt", username: "root" }), "x");
      assert.equal(await sh("stat -c '%U %a' /tmp/roots.txt"), "root 644\n");
    },
  );

  it(
    "C.5 POST /files, metadata: kept as xattrs, replaced by every write, in every answer",
    { skip: noAttributes(backend) },
    async () => {
      const described = await post(query({ path: "meta.txt" }), "x", {
        ...OCTETS,
        "x-metadata-Purpose": "test run",
        "X-METADATA-b": "",
      });
      const metadata = (described.json() as [{ metadata?: unknown }])[0].metadata;
      assert.deepEqual(metadata, { purpose: "test run", b: "" });
      assert.deepEqual((await stat("meta.txt")).metadata, metadata);
      const { body } = await call("ListDir", { path: "~", depth: 1 });
      const listed = (body.entries as { name: string; metadata?: unknown }[]).find(
        ({ name }) => name === "meta.txt",
      );
      assert.deepEqual(listed?.metadata, metadata);
      const script = "import os; print(os.getxattr('meta.txt', 'user.e2b.purpose').decode())";
      assert.equal(await sh(`python3 -c "${script}"`), "test run\n");
      assert.equal((await sandbox().files.getInfo("meta.txt")).metadata?.["purpose"], "test run");
      await put("meta.txt", "y");
      assert.equal((await stat("meta.txt")).metadata, undefined);
    },
  );

  it("C.3 the file that tells programs where they are", { skip: ownTreeAlone(backend) }, async () => {
    assert.equal(await sh("cat /run/e2b/.E2B_SANDBOX"), "true");
    assert.equal((await get({ path: "/run/e2b/.E2B_SANDBOX" })).text, "true");
  });

  it("C.6 POST /files/compose, one file of several, which are gone", async () => {
    await put("part-1", "one ");
    await put("part-2", "two");
    const compose = (body: unknown) =>
      envd().send("POST", "/files/compose", {
        headers: { "content-type": "application/json" },
        body: typeof body === "string" ? body : JSON.stringify(body),
      });
    const made = await compose({ source_paths: ["part-1", "part-2"], destination: "whole.txt" });
    assert.deepEqual(
      [made.status, made.json()],
      [200, { path: "/home/user/whole.txt", name: "whole.txt", type: "file" }],
    );
    assert.equal((await get({ path: "whole.txt" })).text, "one two");
    assert.equal((await get({ path: "part-1" })).status, 404);
    await sh("mkdir -p a-directory");
    for (const [body, status, message] of [
      ["{", 400, /./],
      [{ source_paths: [], destination: "x" }, 400, "source_paths must not be empty"],
      [{ destination: "x" }, 400, "source_paths must not be empty"],
      [{ source_paths: ["whole.txt"] }, 400, "destination is required"],
      [{ source_paths: ["whole.txt"], destination: "./whole.txt" }, 400, /destination/],
      [{ source_paths: ["a-directory"], destination: "x" }, 400, /not a regular file/],
      [{ source_paths: ["absent"], destination: "x" }, 404, "source file not found: /home/user/absent"],
      [
        { source_paths: ["whole.txt"], destination: "x", username: "nobody-here" },
        401,
        /unknown user nobody-here/,
      ],
    ] as const) {
      assertRefused(await compose(body), status, message, JSON.stringify(body));
    }
  });

  it("C.7 paths, over HTTP and RPC", async () => {
    await put("/home/user/c7/file", "here");
    for (const [path, expected] of [
      ["c7/file", "/home/user/c7/file"],
      ["./c7//x/../file", "/home/user/c7/file"],
      ["~/c7/file", "/home/user/c7/file"],
      ["/home/user/./c7/file", "/home/user/./c7/file"],
    ] as const) {
      assert.equal((await get({ path })).text, "here", path);
      assert.equal((await stat(path)).path, expected);
    }
    for (const path of ["", "~", "~/", "."]) assert.equal((await stat(path)).path, "/home/user", path);
    for (const path of ["c7/", "~/c7//", "./c7/."])
      assert.equal((await stat(path)).path, "/home/user/c7", path);
    const root = await call("Stat", { path: "" }, basicUserHeader("root"));
    assert.equal(root.body.entry.path, "/root");
    assert.deepEqual(
      await call("Stat", { path: "~other" }),
      refusal(400, "invalid_argument", "cannot expand user-specific home dir"),
    );
  });

  it("D.3 users, by Basic authentication", async () => {
    assert.deepEqual(
      await call("Stat", { path: "" }, basicUserHeader("nobody-here")),
      refusal(401, "unauthenticated", "invalid username: 'nobody-here'"),
    );
    const stranger = envdClient({ url: server().url, sandboxId: sandbox().sandboxId, token: "wrong" });
    assert.deepEqual(
      (await stranger.call("filesystem.Filesystem/Stat", { path: "" }, basicUserHeader("nobody-here"))).body,
      {
        code: 401,
        message: "unauthorized access, please provide a valid access token or method signing if supported",
      },
    );
  });
});

function oneAccount(backend: string): string | false {
  return backend === "local-process" ? "all accounts of local-process are the server's own" : false;
}

function ownTreeAlone(backend: string): string | false {
  return backend === "local-process" ? "the trees of local-process are empty but for home" : false;
}

function noAttributes(backend: string): string | false {
  return backend === "local-process" ? "local-process keeps no metadata" : false;
}
