import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { eventually, WITHOUT_SMALL_ROOT } from "@coppice/core/testing";
import { Sandbox } from "e2b";
import { makeDevelopmentInstallation } from "../../harness/server/development-installation.js";
import { type ImageHub, openImageHub } from "../../harness/server/image-hub.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { ServerProcess } from "../../harness/server/server-process.js";

const STEPS = "USER root\nCOPY given /\nRUN echo printed by a step; cat /given > /made\nUSER user\n";

describe(
  "a first start of config/development.yaml",
  {
    skip: missingForNamespaces() || WITHOUT_SMALL_ROOT,
    timeout: 240_000,
  },
  () => {
    let installation: Awaited<ReturnType<typeof makeDevelopmentInstallation>>;
    let hub: ImageHub;
    let server: ServerProcess;

    before(async () => {
      hub = await openImageHub([]);
      installation = await makeDevelopmentInstallation((document, directory) => {
        const namespaces = ["plugins", "linux-namespaces"];
        document.setIn([...namespaces, "directory"], join(directory, "namespaces"));
        document.setIn([...namespaces, "egress"], "none");
        const recipe = join(directory, "recipe.yaml");
        writeFileSync(recipe, JSON.stringify({ from: { image: "small" }, steps: STEPS }));
        writeFileSync(join(directory, "given"), "built\n");
        const above = { from: { template: "base" } };
        // The backend has no template `larger` by itself.
        document.setIn(["sandboxes", "templates"], { "base": {}, "code-interpreter-v1": {}, "larger": {} });
        document.setIn(["plugins", "templates"], {
          recipes: { "base": recipe, "code-interpreter-v1": above, "larger": above },
          recipeRetry: "50ms",
          registries: hub.registries,
        });
      });
      server = await ServerProcess.start(installation.configFile, { COPPICE_API_KEY: undefined });
    });
    after(async () => {
      await server.stop();
      await hub[Symbol.asyncDispose]();
      await installation.remove();
    });

    /** What a new sandbox says of the file that the recipe makes. */
    const made = async (template = "base"): Promise<string> => {
      const apiKey = (await readFile(installation.keyFile, "utf8")).trim();
      const sandbox = await Sandbox.create(template, { apiUrl: server.url, sandboxUrl: server.url, apiKey });
      try {
        return (await sandbox.commands.run("cat /made || echo of this host")).stdout.trim();
      } finally {
        await sandbox.kill();
      }
    };
    const logged = (part: string): readonly string[] =>
      server.printed
        .filter((line) => line.startsWith("{"))
        .map((line) => (JSON.parse(line) as { readonly msg: string }).msg)
        .filter((message) => message.includes(part));

    it("serves from this host while templates are not built, and tells once why they are not", async () => {
      await eventually("the failure", () => logged("was not built").length > 0);
      assert.equal(await made(), "of this host");
      await assert.rejects(made("larger"), /404: linux-namespaces has no template 'larger'/);
      await eventually("more attempts", () => logged("building template 'base'").length > 3);
      assert.deepEqual(logged("was not built"), [
        "template 'base' was not built, and is tried again now and then: image 'small' not found: the image or tag does " +
          "not exist in the registry. Remedy: 'coppice template logs <config> base' shows what its steps said",
      ]);
      const told = server.printed.find((line) => line.startsWith("Templates are being built"));
      assert.match(told ?? "", /: base, code-interpreter-v1, larger$/);
    });

    it("tells each step of the build that succeeds, and serves what it has made from then on", async () => {
      hub.add("library/small:latest");
      await eventually("the templates", () => logged("template 'larger' is ready").length > 0);
      const steps = logged("template 'base', step ").map((line) => line.replace(/^template 'base', /, ""));
      const from = steps.lastIndexOf("step 1 of 6: FROM small");
      assert.deepEqual(
        steps.slice(from).filter((line) => !/[Pp]ulling|This image has no|: printed by a step$/.test(line)),
        [
          "step 1 of 6: FROM small",
          "step 1 of 6: Unpacking the image",
          "step 1 of 6: DEFAULT USER user",
          "step 2 of 6: USER root",
          "step 3 of 6: COPY given /",
          "step 4 of 6: RUN echo printed by a step; cat /given > /made",
          "step 5 of 6: USER user",
          "step 6 of 6: Finalizing template build",
        ],
      );
      assert.deepEqual([await made(), await made("larger")], ["built", "built"]);
    });
  },
);
