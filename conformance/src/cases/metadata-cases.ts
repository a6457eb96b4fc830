import assert from "node:assert/strict";
import type { FileInfo } from "@coppice/core/backend";
import type { ConformanceCase } from "../kit/conformance-case.js";
import { chunked, type ConformanceContext } from "../kit/conformance-context.js";

type Metadata = Readonly<Record<string, string>>;

// Written at once, and in steps.
const BODIES: readonly Uint8Array[] = [Buffer.from("small"), Buffer.alloc(600_000)];

export const metadataCases: readonly ConformanceCase[] = [
  {
    name: "metadata is set, replaced as a whole, kept when it is not mentioned, and cleared",
    group: "files",
    needs: ["metadata"],
    async run(context) {
      for (const [index, body] of BODIES.entries()) {
        const path = context.home(`file${index}`);
        const steps: readonly (readonly [Metadata | undefined, Metadata])[] = [
          [
            { one: "1", two: "2" },
            { one: "1", two: "2" },
          ],
          [{ two: "zwei" }, { two: "zwei" }],
          [
            { empty: "", text: "a b=c, 'd' \"e\"" },
            { empty: "", text: "a b=c, 'd' \"e\"" },
          ],
          [{}, {}],
        ];
        for (const [metadata, expected] of steps) {
          const info = await writeWith(context, path, body, metadata);
          assert.deepEqual({ ...info.metadata }, expected);
          assert.deepEqual({ ...(await context.sandbox.files.stat(path)).metadata }, expected);
        }
      }
    },
  },
  {
    name: "metadata is part of every description of an entry, and moves with it",
    group: "files",
    needs: ["metadata"],
    async run(context) {
      const { files } = context.sandbox;
      const metadata = { author: "conformance" };
      await writeWith(context, context.home("dir/file"), Buffer.from("x"), metadata);
      await using file = await files.read(context.home("dir/file"));
      assert.deepEqual({ ...file.info.metadata }, metadata);
      const [listed] = await context.list(context.home("dir"));
      assert.deepEqual({ ...listed?.metadata }, metadata);
      const moved = await files.move(context.home("dir/file"), context.home("other"));
      assert.deepEqual({ ...moved.metadata }, metadata);
      await context.write(context.home("plain"), "x");
      assert.deepEqual({ ...(await files.stat(context.home("plain"))).metadata }, {});
    },
  },
  {
    name: "a file that could not be written keeps its metadata",
    group: "files",
    needs: ["metadata"],
    async run(context) {
      const path = context.home("file");
      await writeWith(context, path, Buffer.from("x"), { version: "1" });
      const failing = async function* (): AsyncGenerator<Uint8Array> {
        yield Buffer.alloc(600_000);
        throw new Error("the source failed");
      };
      await assert.rejects(context.sandbox.files.write(path, failing(), { metadata: { version: "2" } }));
      assert.deepEqual({ ...(await context.sandbox.files.stat(path)).metadata }, { version: "1" });
    },
  },
  {
    name: "more metadata than a file can keep is refused, and the file stays as it was",
    group: "files",
    needs: ["metadata"],
    async run(context) {
      const path = context.home("file");
      await writeWith(context, path, Buffer.from("as it was"), { version: "1" });
      const metadata = { version: "2", large: "x".repeat(200_000) };
      const refused = writeWith(context, path, Buffer.from("new"), metadata);
      await context.refuses(refused, ["invalid_argument", "resource_exhausted"]);
      assert.equal((await context.read(path)).toString(), "as it was");
      assert.deepEqual({ ...(await context.sandbox.files.stat(path)).metadata }, { version: "1" });
    },
  },
];

function writeWith(
  { sandbox }: ConformanceContext,
  path: string,
  body: Uint8Array,
  metadata: Metadata | undefined,
): Promise<FileInfo> {
  return sandbox.files.write(path, chunked(body), { metadata });
}
