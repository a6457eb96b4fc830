import { duration, size } from "@coppice/core";
import { z } from "zod";

const line = z.string().min(1);

/** A root of Debian packages. */
export const debianBase = z.strictObject({
  suite: z.string().regex(/^[a-z][a-z0-9-]*$/, "expected a suite of Debian, such as trixie"),
  packages: z
    .array(z.string().regex(/^[a-z0-9][a-z0-9+.-]+$/, "expected the name of a Debian package"))
    .default([]),
  snapshot: z
    .string()
    .regex(/^\d{8}T\d{6}Z$/, "expected a time of Debian's archive of earlier days, such as 20261124T060000Z")
    .optional()
    .describe("Time whose packages are taken"),
});

const base = z.union([
  z.strictObject({ image: line.describe("Reference of an OCI image, `docker.io/library/debian:12`") }),
  z.strictObject({ debian: debianBase.describe("A root of Debian packages, made by mmdebstrap") }),
  z.strictObject({ template: line.describe("Another template") }),
  z.strictObject({
    directory: line.describe(
      "A root file system on this host, which is copied, relative to the recipe's file",
    ),
  }),
  z.strictObject({
    dockerfile: line.describe(
      "A Dockerfile of one stage, which has the steps, relative to the recipe's file",
    ),
  }),
]);

/** How a template of the configuration is made. */
export const recipeSettings = z.strictObject({
  from: base.describe("What it starts from"),
  steps: z
    .string()
    .default("")
    .describe(
      "Instructions of a Dockerfile without FROM: RUN, ENV, ARG, USER, WORKDIR, and COPY of files beside the recipe",
    ),
  start: line.optional().describe("Command that runs in every sandbox, for `bash -l -c`"),
  ready: line.optional().describe("Command that ends with 0 when the sandbox is ready"),
});

export type RecipeSettings = z.infer<typeof recipeSettings>;

const count = () => z.int().positive();

/** `docker.io`, `registry.example.com:5000` */
const registry = () => z.string().regex(/^[a-z0-9.-]+(:\d+)?$/, "expected a registry, such as docker.io");

const registries = z.strictObject({
  allowed: z
    .array(registry())
    .optional()
    .describe("Registries that builds may pull from; every one when absent. Docker Hub is `docker.io`."),
  private: z
    .array(registry())
    .default([])
    .describe("Registries, with their ports, that may have a private or loopback address."),
  insecure: z.array(registry()).default([]).describe("Registries, with their ports, that speak plain HTTP."),
  proxy: z
    .union([z.literal("none"), z.string().regex(/^https?:\/\/[^/\s]+\/?$/, "expected http://host:port")])
    .optional()
    .describe(
      "Proxy for requests to registries, `http://user:password@proxy.example.com:3128`, or `none`; by default that of the environment, HTTPS_PROXY or HTTP_PROXY. Registries of `private`, and hosts of NO_PROXY, are asked directly.",
    ),
  mirrors: z
    .record(registry(), z.string().regex(/^[a-z0-9.-]+(:\d+)?(\/[a-z0-9._/-]+[a-z0-9])?$/, "expected a host"))
    .default({})
    .describe(
      "Registries to ask in place of others, as `docker.io: mirror.example.com/hub`. A build with credentials asks the registry itself.",
    ),
});

const sharing = z.strictObject({
  registry: z
    .string()
    .regex(
      /^[a-z0-9.-]+(:\d+)?(\/[a-z0-9]+([._-][a-z0-9]+)*)+$/,
      "expected a place in a registry, such as registry.example.com/coppice",
    )
    .describe(
      "Place in a registry, `registry.example.com:5000/coppice`, which nobody but the servers of the fleet may read or write; it may have a private address.",
    ),
  username: z.string().min(1).optional().describe("Account of the servers there."),
  password: z.string().min(1).optional().describe("Of that account."),
  interval: duration("30s").describe(
    "Time between two looks for templates that are not pushed yet, or whose server is gone; also after which a failed transfer is tried again.",
  ),
});

const images = z.strictObject({
  skopeo: z
    .string()
    .min(1)
    .default("skopeo")
    .describe("Program that pulls and pushes images: a path, or a name in PATH."),
  maxConcurrentPulls: count()
    .default(4)
    .describe(
      "Images that may be pulled at one time, and as many pushed; tenants share them as `buildConcurrency`.",
    ),
  idleTimeout: duration("60s").describe("Silence of a registry after which a pull or a push fails."),
  minRate: size("8KiB").describe(
    "Bytes a second that a registry has to move, counted over twice `idleTimeout`; a slower pull or push fails.",
  ),
  maxDownload: size("10GiB").describe("Bytes of all layers of an image, as they are transferred."),
  maxLayers: count().default(200).describe("Layers of an image."),
  maxMetadata: size("512KiB").describe(
    "Bytes of a manifest and of a configuration of an image; larger ones hold up the server while they are parsed.",
  ),
  maxValues: count()
    .default(5_000)
    .describe("Values in a manifest and in a configuration of an image, for the same reason."),
  maxSize: size("20GiB").describe("Bytes of an unpacked image."),
  maxEntries: count().default(1_000_000).describe("Files, directories and links of an image."),
});

const debian = z.strictObject({
  mmdebstrap: z
    .string()
    .min(1)
    .default("mmdebstrap")
    .describe("Program that makes roots of Debian packages: a path, or a name in PATH."),
  sources: z
    .array(z.string().regex(/^(deb|https?:|\/)/, "expected a line of sources.list, a URL or a path"))
    .default([])
    .describe("Where packages come from, as mmdebstrap takes it; its own default when empty."),
  snapshots: z
    .url({ protocol: /^https?$/ })
    .default("http://snapshot.debian.org/archive")
    .describe(
      "Archive of the packages of earlier days, for recipes with `snapshot`; below it, /debian/<snapshot>.",
    ),
  snapshotTimeout: duration("1s").describe(
    "Time in which that archive has to accept a connection; another five of it for its answer. After that its packages count as unreachable for ten minutes.",
  ),
  keyring: z
    .string()
    .min(1)
    .optional()
    .describe("File with the keys that packages are signed with; those of this host when absent."),
});

const builds = z.strictObject({
  allowInternetAccess: z.boolean().default(true).describe("Let steps of builds connect to the internet."),
  standIns: z
    .record(z.string(), z.string())
    .default({ "e2bdev/base": "base" })
    .describe("Templates of this server to start from in place of images, where there is a build of them."),
  certificates: z
    .union([z.enum(["host", "none"]), z.string().min(1)])
    .default("host")
    .describe(
      "Authorities that templates of images and packages trust beside their own, for a network whose proxy opens TLS. `host`: those of this host beside the public ones, where it has any. A PEM file has others. `none`: no further ones.",
    ),
  proxy: z
    .enum(["recipes", "all", "none"])
    .default("recipes")
    .describe(
      "Builds whose commands get HTTP_PROXY, HTTPS_PROXY and NO_PROXY of the server's environment: those of recipes, `all` (clients then see its account), or none. A proxy on loopback cannot be reached from them.",
    ),
  installTimeout: duration("10m").describe("Time for installing programs that an image lacks."),
  readyTimeout: duration("10m").describe("Time until the ready command succeeds at the end of a build."),
  maxCopy: size("10GiB").describe("Bytes of the files of one COPY step, unpacked."),
});

export const templatesConfig = z.strictObject({
  recipes: z
    .record(z.string(), z.union([z.string().min(1), recipeSettings]))
    .default({})
    .describe(
      "How templates of `sandboxes.templates` are made, by name: a recipe, or the path of a YAML file with one. Built in the background; until then, and for templates without a recipe, sandboxes have what their backend has by that name.",
    ),
  recipeRetry: duration("10m").describe(
    "Time after which a failed build of a recipe is tried again; each further failure doubles it, up to a day.",
  ),
  pins: z
    .enum(["prefer", "require", "ignore"])
    .default("prefer")
    .describe(
      "What `snapshot` and the lock file of a recipe are for. `prefer`: packages of the snapshot, the newest where its archive fails; a build that differs from the lock warns. `require`: either fails the build. `ignore`: the newest packages, with security updates.",
    ),
  backend: z
    .string()
    .optional()
    .describe("Backend that templates are built on; by default the default one, or else the first that can."),
  maxTemplates: count().default(100).describe("Templates that a tenant may have."),
  maxStorage: size("50GiB").describe(
    "Space for the images of a tenant. Beyond it no build begins and none makes a further image; cached steps give way after a build.",
  ),
  maxTags: count().default(100).describe("Tags that a template may have."),
  maxBuilds: count()
    .default(20)
    .describe(
      "The newest builds of a template that are kept; older ones stay as long as a tag leads to them.",
    ),
  maxConcurrentBuilds: count()
    .default(20)
    .describe("Builds of one tenant that may run, or wait to be started, at one time."),
  maxConcurrentPushes: count()
    .default(4)
    .describe("Pushes of one tenant that may run, or wait for their turn, at one time."),
  buildConcurrency: count()
    .default(4)
    .describe(
      "Builds that run at the same time. Where there are several tenants, one may have half of them, and the next one half of the rest; they take turns with further ones. With 1, all wait for one.",
    ),
  waitingTimeout: duration("40m").describe("Time that a client has to start a build that it has requested."),
  buildTimeout: duration("1h").describe("Time that a build, or a push, may take."),
  defaultCpuCount: count().default(2).describe("CPUs of a template whose creator names none."),
  maxCpuCount: count().default(32).describe("Most CPUs that a template may have."),
  defaultMemory: size("1GiB").describe("Memory of a template whose creator names none."),
  maxMemory: size("8GiB").describe("Most memory that a template may have."),
  maxDisk: size("20GiB").describe("Most disk that a template may have."),
  maxSteps: count().default(500).describe("Steps that a build may have."),
  maxBody: size("1MiB").describe("Largest request body, without uploads."),
  maxLog: size("4MiB").describe("Longest log of a build; later lines are left out."),
  maxLayers: count()
    .default(1000)
    .describe("Results of steps that are kept for later builds of a tenant, the last used ones."),
  layersKept: duration("30d").describe("Time without use after which the result of a step is removed."),
  maxUpload: size("1GiB").describe("Largest archive of files for one COPY step."),
  maxUploads: size("10GiB").describe(
    "Space for the archives of a tenant. One counts as 64KiB more than it has, which bounds their number.",
  ),
  uploadsKept: duration("7d").describe("Time without use after which an archive is removed."),
  uploadLinkLife: duration("30m").describe("Time in which the upload of an archive has to begin."),
  uploadUrl: z
    .url({ protocol: /^https?$/ })
    .optional()
    .describe("Base URL of this server in upload links; by default the one that the client has used."),
  startTimeout: duration("45s").describe("Time that the start command of a new sandbox has to become ready."),
  readyInterval: duration("200ms").describe("Time between two runs of a ready command."),
  longestSleep: duration("5s").describe(
    "Longest wait for a ready command that only sleeps, where no port tells that a sandbox is ready.",
  ),
  builds: builds.prefault({}).describe("Builds, step by step."),
  debian: debian.prefault({}).describe("Roots of Debian packages that recipes start from."),
  images: images.prefault({}).describe("Images of registries that builds start from."),
  registries: registries.prefault({}).describe("Registries of images."),
  sharing: sharing
    .optional()
    .describe("Registry by which the servers of a fleet have each other's templates; none when absent."),
});

export type Pins = TemplatesConfig["pins"];
export type TemplatesConfig = z.infer<typeof templatesConfig>;
