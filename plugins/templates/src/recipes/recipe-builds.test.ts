import assert from "node:assert/strict";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { after, before, beforeEach, describe, it } from "node:test";
import { setTimeout } from "node:timers/promises";
import { Templates } from "@coppice/core";
import { BuildFailure } from "../model/build-record.js";
import type { BuildRequest } from "../model/build-request.js";
import { TemplatesStore } from "../store/templates-store.js";
import {
  type TemplatesServer,
  templatesServer,
  type TemplatesServerOptions,
} from "../testing/templates-server.js";

import { builtImageOf } from "./recipe.js";

interface Listed {
  readonly templateID: string;
  readonly public: boolean;
  readonly buildStatus: string;
  readonly buildCount: number;
  readonly spawnCount: number;
  readonly createdAt: string;
}

const DEBIAN = { from: { debian: { suite: "trixie" } } };
const SERVED = { sandboxes: { templates: { base: {}, code: {} } } };

describe("templates of the configuration that are built here", { timeout: 60_000 }, () => {
  let directory: string;
  let backend: TemplatesServer["backend"] | undefined;

  before(async () => (directory = await mkdtemp(join(tmpdir(), "coppice-recipes-"))));
  after(() => rm(directory, { recursive: true, force: true }));
  beforeEach(async () => {
    await rm(directory, { recursive: true, force: true });
    backend = undefined;
  });

  /** Runs a server on the data and the backend of the last one. @returns the templates that it built */
  async function withServer(
    recipes: Readonly<Record<string, unknown>>,
    use: (server: TemplatesServer) => Promise<void>,
    script?: TemplatesServerOptions["script"],
  ): Promise<readonly string[]> {
    const server = await templatesServer({
      dataDir: directory,
      server: SERVED,
      settings: { recipes, recipeRetry: "50ms" },
      ...(backend && { backend }),
      ...(script && { script }),
    });
    backend = server.backend;
    try {
      await use(server);
    } finally {
      await server.stop();
    }
    return server.builder.requests.map(({ templateId }) => templateId);
  }

  it("begin as their backend has them, have the files of their build from then on, and keep it", async () => {
    let image: string | undefined;
    const built = await withServer({ base: DEBIAN }, async (server) => {
      image = await untilBuilt(server, "base");
      const { record } = await server.sandboxes.create({
        template: "base",
        timeoutMs: 60_000,
        secure: false,
      });
      assert.equal(record.build?.image.id, image);
      assert.equal(record.template, "base");
      const listed = await server.ask<readonly Listed[]>("GET /templates");
      const since = listed.json[1]?.createdAt ?? "";
      assert.deepEqual(
        listed.json.map(
          ({ templateID, public: isPublic, buildStatus, buildCount, spawnCount, createdAt }) => [
            templateID,
            isPublic,
            buildStatus,
            buildCount,
            spawnCount,
            // That of the other one is the start of the server.
            createdAt > since,
          ],
        ),
        [
          ["base", true, "ready", 1, 1, true],
          ["code", true, "ready", 1, 0, false],
        ],
      );
      const refused = await server.ask("POST /v3/templates", { name: "base" });
      assert.equal(refused.status, 403, refused.text);
    });
    assert.deepEqual(built, ["base"]);
    const again = await withServer({ base: DEBIAN }, async (server) => {
      assert.equal(buildOf(server, "base"), image);
      await setTimeout(50);
    });
    assert.deepEqual(again, []);
    await withServer({}, async (server) => assert.equal(buildOf(server, "base"), undefined));
  });

  it("are bases for every tenant while they have a recipe, those that an earlier version made, too", async () => {
    const baseOf = async (server: TemplatesServer): Promise<string | undefined> => {
      const requested = await server.build("mine", { tenant: "acme", start: { fromTemplate: "base" } });
      const { status, reason } = await server.ended(requested, "acme");
      return reason?.message ?? status;
    };
    const script: TemplatesServerOptions["script"] = ({ base }, surroundings, make) => {
      if (base.kind === "template") surroundings.findTemplate(base.reference);
      return make();
    };
    await withServer({ base: DEBIAN }, async (server) => void (await untilBuilt(server, "base")));
    const database = new DatabaseSync(join(directory, "templates", "templates.sqlite"));
    database.exec("UPDATE template SET is_public = 0");
    database.close();
    const afterwards = await withServer(
      { base: DEBIAN },
      async (server) => {
        assert.equal(await baseOf(server), "ready");
        const pushed = { template: "base", image: "registry.example.com/base" };
        assert.match(
          (await server.ask("POST /templates/push", pushed, "acme")).text,
          /there are no registries/,
        );
      },
      script,
    );
    assert.equal(afterwards.length, 1, "the recipe is not built again");
    await withServer(
      {},
      async (server) =>
        assert.match((await baseOf(server)) ?? "", /template 'base' is not built on this server/),
      script,
    );
  });

  it("keep their former build until a changed recipe is built, and lose it then", async () => {
    await withServer({ base: DEBIAN }, async (server) => void (await untilBuilt(server, "base")));
    const gate = Promise.withResolvers<void>();
    await withServer(
      { base: { ...DEBIAN, steps: "RUN true" } },
      async (server) => {
        const former = buildOf(server, "base");
        assert.notEqual(former, undefined);
        gate.resolve();
        assert.notEqual(await untilBuilt(server, "base", former), former);
      },
      async (_request, _surroundings, make) => {
        await gate.promise;
        return await make();
      },
    );
  });

  it("are built after those that they start from, and again with them", async () => {
    const code = { from: { template: "base" } };
    const all = async (server: TemplatesServer): Promise<void> => {
      while (server.builder.requests.length < 2) await setTimeout(5);
      await untilBuilt(server, "code");
    };
    assert.deepEqual(await withServer({ code, base: DEBIAN }, all), ["base", "code"]);
    assert.deepEqual(await withServer({ code, base: { ...DEBIAN, start: "x" } }, all), ["base", "code"]);
  });

  it("are tried again after a failure, which holds up no other one", async () => {
    let hasFailed = false;
    const built = await withServer(
      { base: DEBIAN, code: DEBIAN },
      async (server) => {
        await untilBuilt(server, "code");
        await untilBuilt(server, "base");
      },
      ({ templateId }, _surroundings, make) => {
        if (templateId !== "base" || hasFailed) return make();
        hasFailed = true;
        throw new BuildFailure("no", "base");
      },
    );
    assert.deepEqual(built, ["base", "code", "base"]);
  });

  it("come from an image beside the recipe that it was built of; of a damaged one or a changed recipe nothing is taken", async (context) => {
    const folder = await mkdtemp(join(tmpdir(), "coppice-recipe-"));
    context.after(() => rm(folder, { recursive: true }));
    const recipe = join(folder, "recipe.yaml");
    const write = (steps: string): Promise<void> =>
      writeFile(recipe, JSON.stringify({ ...DEBIAN, steps, start: "serve" }));
    await write("RUN true");
    let digest = "";
    await withServer({ base: recipe }, async (server) => {
      await untilBuilt(server, "base");
      const store = new TemplatesStore(join(directory, "templates"));
      digest = store.tags.list("base").find(({ name }) => name !== "default")?.name ?? "";
      store.close();
    });
    const image = builtImageOf(recipe, digest);
    await mkdir(image);

    const requests = async (script?: TemplatesServerOptions["script"]): Promise<readonly BuildRequest[]> => {
      await rm(directory, { recursive: true });
      const made: BuildRequest[] = [];
      await withServer(
        { base: recipe },
        async (server) => {
          await untilBuilt(server, "base");
          made.push(...server.builder.requests);
        },
        script,
      );
      return made;
    };
    const [unpacked, ...others] = await requests();
    assert.deepEqual(others, []);
    assert.deepEqual(unpacked?.base, { kind: "layout", path: image });
    assert.deepEqual(
      [unpacked.steps, unpacked.startCommand, unpacked.restore],
      [[], "serve", { limits: false }],
    );

    const damaged = await requests(({ base }, _surroundings, make) => {
      if (base.kind === "layout") throw new BuildFailure("it has no index", "base");
      return make();
    });
    assert.deepEqual(
      damaged.map(({ base, steps, restore }) => [base.kind, steps.length, restore]),
      [
        ["layout", 0, { limits: false }],
        ["debian", 1, undefined],
      ],
    );
    await write("RUN false");
    assert.deepEqual(
      (await requests()).map(({ base }) => base.kind),
      ["debian"],
    );
  });

  it("that are being built at the stop are given up", async () => {
    await withServer(
      { base: DEBIAN, code: DEBIAN },
      async (server) => {
        while (server.builder.requests.length === 0) await setTimeout(5);
      },
      (_, { signal }) =>
        new Promise((_resolve, reject) =>
          signal.addEventListener("abort", () => reject(signal.reason as Error)),
        ),
    );
    await withServer({ base: DEBIAN }, async (server) => void (await untilBuilt(server, "base")));
  });

  it("need a template and a recipe that can be read", async () => {
    const nothing = async (): Promise<void> => {};
    await assert.rejects(
      withServer({ other: DEBIAN }, nothing),
      /recipes.other: sandboxes.templates has no template/,
    );
    await assert.rejects(
      withServer({ base: "/nowhere.yaml" }, nothing),
      /recipes.base: \/nowhere.yaml: ENOENT/,
    );
  });
});

function buildOf(server: TemplatesServer, template: string): string | undefined {
  return server.resolve(Templates).find(template).build?.image.id;
}

/** Waits for a build other than a former one. @returns its image */
async function untilBuilt(server: TemplatesServer, template: string, former?: string): Promise<string> {
  for (;;) {
    const image = buildOf(server, template);
    if (image !== undefined && image !== former) return image;
    await setTimeout(5);
  }
}
