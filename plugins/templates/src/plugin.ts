import { join } from "node:path";
import {
  Clock,
  definePlugin,
  Greeting,
  MEBIBYTE,
  openedAtStart,
  Peers,
  type Plugin,
  type PluginContext,
  Sandboxes,
  SharedTemplates,
  Snapshots,
  Startups,
  type TemplateFacts,
  Templates,
  Tenants,
} from "@coppice/core";
import { Backends, type SandboxBackend } from "@coppice/core/backend";
import { Commands } from "@coppice/plugin-commands";
import type { ApiServices } from "./api/api-services.js";
import { mountBuilds } from "./api/build-routes.js";
import { mountPushes } from "./api/push-routes.js";
import { mountTags, mountTemplates } from "./api/template-routes.js";
import { mountUploadLinks, mountUploads, uploadGuard } from "./api/upload-routes.js";
import { ImageBuilder } from "./builds/image-builder.js";
import { BuildRequests } from "./catalog/build-requests.js";
import { builtTemplates, Catalog } from "./catalog/catalog.js";
import { DebianImages } from "./debian/debian-image.js";
import { diagnoseArchives } from "./debian/debian-archives.js";
import { diagnosePrograms, HostPrograms } from "./images/host-programs.js";
import { ImagePuller } from "./images/image-puller.js";
import { ImagePusher } from "./images/image-pusher.js";
import type { Builder } from "./model/builder.js";
import { BuildQueue, templatesMetrics } from "./queue/build-queue.js";
import { housekeeping } from "./queue/housekeeping.js";
import { TemplatePushes } from "./queue/template-pushes.js";
import { readRecipe, readRecipes } from "./recipes/recipe.js";
import { RecipeBuilds } from "./recipes/recipe-builds.js";
import { templateSharing } from "./sharing/open-sharing.js";
import { StartCommands } from "./startup/start-commands.js";
import { ImageKeeper } from "./store/image-keeper.js";
import { TemplatesStore } from "./store/templates-store.js";
import { type TemplatesConfig, templatesConfig } from "./templates-config.js";
import { Uploads, uploadTickets } from "./uploads/uploads.js";
import { templateBuild } from "./verbs/template-build.js";
import { templateFsck, templateGc } from "./verbs/image-verbs.js";
import { templateInspect, templateList } from "./verbs/template-inspect.js";
import { templateLock } from "./verbs/template-lock.js";
import { templateLogs } from "./verbs/template-logs.js";
import { templatePull, templatePush } from "./verbs/transfer-verbs.js";
import { templateRemove, templateTag, templateUntag } from "./verbs/catalog-verbs.js";
import { REASONS } from "./reasons.js";

/** Makes images, and takes them elsewhere. */
export interface Imaging {
  readonly builder: Builder;
  readonly pusher: Pick<ImagePusher, "target">;
  /** For the fleet's registry; undefined without one. */
  readonly sharing?: {
    readonly pusher: Pick<ImagePusher, "target">;
    readonly puller: Pick<ImagePuller, "find">;
  };
}

function backendOf({ backend }: TemplateFacts, backends: Backends): SandboxBackend {
  return backend === undefined ? backends.default() : backends.get(backend);
}

/**
 * Makes the plugin: templates that clients build, with their names, tags and uploads, and the start commands of their
 * sandboxes; the templates of the configuration are read by its routes, too.
 */
export function templatesPlugin(
  makeImaging: (services: {
    readonly context: PluginContext<TemplatesConfig>;
    readonly backends: Backends;
    readonly tenants: Tenants;
    readonly clock: Clock;
  }) => Imaging,
): Plugin {
  return definePlugin({
    name: "templates",
    reasons: REASONS,
    config: templatesConfig,
    requires: {
      backends: Backends,
      clock: Clock,
      greeting: Greeting,
      peers: Peers,
      sandboxes: Sandboxes,
      shared: SharedTemplates,
      snapshots: Snapshots,
      startups: Startups,
      templates: Templates,
      tenants: Tenants,
    },
    uses: { commands: Commands },
    verbs: {
      template: {
        pull: templatePull,
        build: templateBuild,
        push: templatePush,
        list: templateList,
        inspect: templateInspect,
        lock: templateLock,
        logs: templateLogs,
        tag: templateTag,
        untag: templateUntag,
        remove: templateRemove,
        gc: templateGc,
        fsck: templateFsck,
      },
    },
    async setup(context, services) {
      const {
        backends,
        clock,
        greeting,
        peers,
        sandboxes,
        snapshots,
        startups,
        templates,
        tenants,
        commands,
      } = services;
      const { config, log } = context;
      context.onReload([
        "buildTimeout",
        "layersKept",
        "maxBuilds",
        "maxConcurrentBuilds",
        "maxConcurrentPushes",
        "maxCpuCount",
        "maxDisk",
        "maxLayers",
        "maxLog",
        "maxMemory",
        "maxStorage",
        "maxTags",
        "maxTemplates",
        "maxUpload",
        "maxUploads",
        "uploadsKept",
        "waitingTimeout",
      ]);
      const file = openedAtStart(() => new TemplatesStore(context.dataDir()));
      const store = file.get;
      context.onStart(() => file.open());
      context.onStop(() => file.close());

      const uploads = new Uploads({
        directory: () => join(context.dataDir(), "uploads"),
        store,
        settings: config,
        clock,
      });
      const tickets = uploadTickets(() => store().secret("uploads"));
      const keeper = new ImageKeeper({ store, backends, clock, log });
      context.onStart(async () => {
        store().builds.failInterrupted(clock.now());
        await uploads.reconcile();
        await keeper.repair();
      });
      context.onStop(() => keeper.idle());

      const catalog = new Catalog(store, (reference) => recipes.source(reference));
      const metrics = templatesMetrics(context.metrics, () => queue.running);
      const { builder, pusher, sharing: transports } = makeImaging({ context, backends, tenants, clock });
      const pushing = { backends, snapshots, store, catalog, keeper, settings: config, clock, log };
      const pushes = new TemplatePushes({ pusher, ...pushing });
      const sharing =
        transports &&
        templateSharing({
          shared: services.shared,
          transports,
          buildsInUse: () => sandboxes.list().flatMap(({ record }) => record.build?.id ?? []),
          ...pushing,
        });
      if (sharing !== undefined) {
        services.shared.useLoan((snapshot, signal) => sharing.lend(snapshot, signal));
        context.onStart(() => sharing.start());
        context.onStop(() => sharing.stop());
      }
      const queue = new BuildQueue({
        builder,
        store,
        catalog,
        uploads,
        keeper,
        sharing,
        settings: config,
        tenants,
        metrics,
        clock,
        log,
      });
      context.onStop(() => queue.stop());
      const keeping = housekeeping({ store, uploads, keeper, settings: config, clock, log });
      context.onStart(() => keeping.start());
      context.onStop(() => keeping.stop());

      const recipes = new RecipeBuilds({
        recipes: await readRecipes(config.recipes, { templates, pins: config.pins }),
        templates,
        store,
        catalog,
        queue,
        uploads,
        backendOf: (name) => backendOf(templates.find(name), backends),
        limitsOf: (name) => templates.find(name).limits,
        buildLimits: {
          cpuCount: config.defaultCpuCount,
          memoryMiB: Math.ceil(config.defaultMemory / MEBIBYTE),
          diskMiB: undefined,
        },
        retryMs: config.recipeRetry,
        clock,
        log,
      });
      // Other plugins look at the templates of the configuration when they start.
      const buildOf = (name: string) => (file.find() === undefined ? undefined : recipes.buildOf(name));
      templates.add(
        builtTemplates(catalog, store, { buildOf, builds: (name) => recipes.has(name) }, sharing),
      );
      context.onStart(() => recipes.start());
      greeting.add(() => {
        const names = recipes.pending();
        return names.length === 0
          ? []
          : [`Templates are being built, and made of this host until then: ${names.join(", ")}`];
      });
      context.onStop(() => recipes.stop());

      startups.add(new StartCommands({ commands, settings: config, clock }));
      sandboxes.onCreated(({ record }) => {
        if (record.build === undefined || record.snapshot !== undefined) return;
        try {
          store().templates.spawned(record.template, clock.now());
          sharing?.used(record.build.id);
        } catch (error) {
          // No reason to take a sandbox from its creator.
          log.warn({ err: error }, "a sandbox of a template was not counted");
        }
      });

      const requests = new BuildRequests({ settings: config, catalog, store, templates, snapshots, clock });
      const api: ApiServices = {
        config,
        clock,
        log,
        backends,
        sandboxes,
        snapshots,
        templates,
        peers,
        store,
        catalog,
        requests,
        queue,
        pushes,
        sharing,
        keeper,
        uploads,
        tickets,
      };
      const router = context.http("api", { errors: "e2b" });
      // Before the routes of one template, which would take the words for ids.
      mountTags(router, api);
      mountPushes(router, api);
      mountTemplates(router, api);
      mountBuilds(router, api);
      mountUploadLinks(router, api);
      const uploadRouter = context.http("api", { errors: "e2b", guard: uploadGuard(tickets, clock) });
      mountUploads(uploadRouter, api);
    },
  });
}

/** Templates that are built in sandboxes, of images that skopeo pulls. */
export const plugin = templatesPlugin(({ context, backends, tenants, clock }) => {
  const { config: settings, log } = context;
  const programs = new HostPrograms();
  context.onStop(() => programs.close());
  const layouts = (): string => join(context.dataDir(), "pulls");
  const { images, sharing } = settings;
  const registries = { ...settings.registries, ...(sharing && { reserved: sharing.registry }) };
  const transport = { programs, settings: { images, registries }, directory: layouts };
  const puller = new ImagePuller({ ...transport, tenants });
  const debian = new DebianImages({ programs, settings, directory: layouts });
  context.onStart(() => puller.clear());
  context.diagnose("images", async ({ signal }) => {
    const recipes = await Promise.all(
      Object.values(settings.recipes).map(async (recipe) => readRecipe(recipe)),
    );
    const bases = recipes.map(({ base }) => base);
    const needsDebian = bases.some(({ kind }) => kind === "debian");
    return [
      ...(await diagnosePrograms({ programs, settings, needsDebian, signal })),
      ...(await diagnoseArchives({ settings, bases })),
    ];
  });
  const builder = new ImageBuilder({ backends, programs, puller, debian, layouts, settings, clock, log });
  const pusher = new ImagePusher({ ...transport, tenants });
  if (sharing === undefined) return { builder, pusher };
  // The operator has named it: an address that clients' builds may not reach is all right, and no mirror stands for it.
  const host = sharing.registry.replace(/\/.*$/, "");
  const own = { ...settings.registries, allowed: undefined, mirrors: {}, private: [host] };
  const fleet = { ...transport, settings: { images, registries: own } };
  return { builder, pusher, sharing: { pusher: new ImagePusher(fleet), puller: new ImagePuller(fleet) } };
});
