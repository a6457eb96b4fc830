import { messageOf, SandboxError } from "@coppice/core";
import type { WantedDebian } from "../debian/debian-image.js";
import { type LayoutImage, readLayout, type WantedImage } from "../images/image-puller.js";
import { BuildFailure } from "../model/build-record.js";
import type { BuildBase } from "../model/build-request.js";
import type { SourceBuild } from "../model/builder.js";
import { type Authorities, readAuthorities, trustAuthorities } from "./authorities.js";
import { makeAccount } from "../guest/accounts.js";
import { installPrograms } from "./base-programs.js";
import { baseKey, type BuildTools, type Progress, stepKey } from "./build-tools.js";
import type { HostPrograms } from "../images/host-programs.js";
import { type MadeImage, makeImage } from "../images/made-image.js";

/** Account of a build's first step, and of its sandboxes where no step names another. */
export const DEFAULT_USER = "user";

const userKey = (key: string): string =>
  stepKey(key, { type: "USER", args: [DEFAULT_USER, "true"], filesHash: undefined });

/** Brings a build to its first step. @throws BuildFailure, SandboxError, the signal's reason */
export async function startFrom(base: BuildBase, tools: BuildTools): Promise<Progress> {
  switch (base.kind) {
    case "template":
      return fromTemplate(findTemplate(base.reference, tools), `FROM TEMPLATE ${base.reference}`, tools);
    case "image": {
      const template = standIn(base.reference, tools);
      return template === undefined
        ? fromFiles(fromRegistry(base, tools), tools)
        : fromTemplate(template, `FROM ${base.reference}`, tools);
    }
    case "debian":
      return fromFiles(fromDebian(base, tools), tools);
    case "directory":
      return fromFiles(fromDirectory(base, tools), tools);
    case "layout":
      return fromFiles(fromLayout(base, tools), tools);
  }
}

function findTemplate(reference: string, { options }: BuildTools): SourceBuild {
  const found = options.surroundings.findTemplate(reference);
  if (found.backend === options.request.backend) return found;
  throw new BuildFailure(`template '${reference}' is of another backend, '${found.backend}'`, "base");
}

/** The template that stands for an image, unless there is none. @throws SandboxError when it is not built yet */
function standIn(reference: string, tools: BuildTools): SourceBuild | undefined {
  const { standIns } = tools.options.settings.builds;
  const name = reference.replace(/:latest$/, "");
  // An image may be called `constructor`.
  const template = Object.hasOwn(standIns, name) ? standIns[name] : undefined;
  if (template === undefined) return undefined;
  try {
    return findTemplate(template, tools);
  } catch (error) {
    const isMissing = error instanceof SandboxError && error.code === "not_found";
    if (!isMissing && !(error instanceof BuildFailure)) throw error;
    tools.print(
      "warn",
      `No template of this server stands for ${reference}, so its registry is asked: ${error.message}`,
    );
    return undefined;
  }
}

function fromTemplate(source: SourceBuild, text: string, tools: BuildTools): Progress {
  const { image, context, start, bytes } = source;
  // Another build with the same result is the same base.
  const key = baseKey("template", image, JSON.stringify([context, start]));
  tools.announce({ prefix: "base", text, key, isCached: true });
  tools.announce({ prefix: "base", text: `DEFAULT USER ${DEFAULT_USER}`, key: userKey(key), isCached: true });
  return { key: userKey(key), image, context: { ...context, user: DEFAULT_USER }, start, bytes };
}

/** Files from outside of this server. */
interface Origin {
  /** `image 'debian:12'` */
  readonly name: string;
  /** As the log has it. */
  readonly text: string;
  readonly key: string;
  readonly unpacked: () => Promise<Progress>;
}

function fromRegistry(wanted: WantedImage, tools: BuildTools): Origin {
  const { reference } = wanted;
  const { restore, limits } = tools.options.request;
  const kind = restore === undefined ? "image" : "pushed";
  const key = baseKey(kind, limits.diskMiB, reference);
  const name = `image '${reference}'`;
  return { name, text: `FROM ${reference}`, key, unpacked: () => pulled(wanted, tools) };
}

function fromDebian(wanted: WantedDebian, tools: BuildTools): Origin {
  const { suite, packages } = wanted;
  const { debian, request } = tools.options;
  const pin = debian.pinOf(wanted);
  const key = baseKey("debian with build.list", request.limits.diskMiB, suite, pin, ...packages);
  const of = pin === undefined ? "" : ` of ${pin.snapshot}`;
  const text = `FROM DEBIAN ${suite}${of} with ${packages.length} packages`;
  const name = `Debian ${suite}`;
  const unpacked = async (): Promise<Progress> => {
    tools.print("info", "Installing the packages");
    // Lines with paths of this host are for those who debug.
    const onLine = (line: string): void => {
      const isStep = /^I: [^/]+$/.test(line);
      tools.print(isStep ? "info" : "debug", isStep ? line.slice(3) : line);
    };
    const onUnpinned = (reason: string): void => {
      tools.print("warn", `the newest packages are taken: ${reason}`);
    };
    await using made = await debian.make(wanted, { signal: tools.signal, onLine, onUnpinned });
    return await unpack(made, { name, key: baseKey("packages", made.digest) }, tools);
  };
  return { name, text, key, unpacked };
}

function fromDirectory(
  { path, modifiedAtMs }: BuildBase & { readonly kind: "directory" },
  tools: BuildTools,
): Origin {
  const { programs, layouts, request } = tools.options;
  const name = `directory '${path}'`;
  const key = baseKey("directory", request.limits.diskMiB, path, modifiedAtMs);
  const unpacked = async (): Promise<Progress> => {
    tools.print("info", "Copying the directory");
    await using made = await imageOfDirectory({ programs, parent: layouts(), path, signal: tools.signal });
    return await unpack(made, { name, key: baseKey("unpacked", made.digest) }, tools);
  };
  return { name, text: `FROM DIRECTORY ${path}`, key, unpacked };
}

function fromLayout({ path }: BuildBase & { readonly kind: "layout" }, tools: BuildTools): Origin {
  const { settings, request } = tools.options;
  const name = `image '${path}'`;
  const key = baseKey("layout", request.limits.diskMiB, path);
  const unpacked = async (): Promise<Progress> => {
    const { digest, ...image } = await readLayout(path, settings.images).catch((error: unknown) => {
      throw new BuildFailure(`${name} cannot be read: ${messageOf(error)}`, "base", { cause: error });
    });
    return await unpack(image, { name, key: baseKey("restored", digest) }, tools);
  };
  return { name, text: `FROM LAYOUT ${path}`, key, unpacked };
}

async function fromFiles({ name, text, unpacked, ...origin }: Origin, tools: BuildTools): Promise<Progress> {
  const { workspace, signal } = tools;
  const authorities = await readAuthorities(tools.options.settings.builds.certificates);
  const key =
    authorities === undefined
      ? origin.key
      : stepKey(origin.key, { type: "TRUST", args: [authorities.digest], filesHash: undefined });
  const cached = tools.cached(userKey(key));
  const isCached = cached !== undefined;
  tools.announce({ prefix: "base", text, key, isCached });
  const below = cached ?? (await unpacked());
  if (!isCached) {
    await workspace.open(below.image);
    await provide(name, tools, authorities);
  }
  tools.announce({ prefix: "base", text: `DEFAULT USER ${DEFAULT_USER}`, key: userKey(key), isCached });
  if (cached !== undefined) return cached;
  await makeAccount(await workspace.sandbox(), DEFAULT_USER, { isSudoer: true, signal });
  const made = await workspace.commit(below.bytes);
  const { context, start } = below;
  // That of a pushed template has a user of its own.
  const user = context.limits === undefined ? DEFAULT_USER : context.user;
  return tools.keep({ ...made, key: userKey(key), context: { ...context, user }, start });
}

/** The files of an image as its registry has them. The same ones are not fetched again. */
async function pulled(wanted: WantedImage, tools: BuildTools): Promise<Progress> {
  const { signal, print, options } = tools;
  using remote = await options.puller.find({ ...wanted, tenant: options.request.tenant }, signal);
  print("debug", `${wanted.reference} is ${remote.digest}`);
  const key = baseKey(options.request.restore === undefined ? "unpacked" : "restored", remote.digest);
  const known = tools.find(key);
  if (known !== undefined) return known;
  await using made = await remote.pull((line) => print("info", line), options.surroundings.report);
  return await unpack(made, { name: `image '${wanted.reference}'`, key }, tools);
}

async function unpack(
  { layout, reference, environment, template }: LayoutImage,
  { name, key }: Pick<Origin, "name" | "key">,
  tools: BuildTools,
): Promise<Progress> {
  const { workspace, signal, print, options } = tools;
  const { images, settings } = options;
  const known = tools.find(key);
  if (known !== undefined) return known;
  print("info", "Unpacking the image");
  const { maxSize: maxBytes, maxEntries } = settings.images;
  try {
    const made = await workspace.unpack((image) =>
      images.unpack(image, { layout, reference, maxBytes, maxEntries }, signal),
    );
    if (template !== undefined && options.request.restore !== undefined) {
      const { start, ...context } = template;
      return tools.keep({ ...made, key, context, start });
    }
    const context = { environment, user: "root", workdir: undefined };
    return tools.keep({ ...made, key, context, start: undefined });
  } catch (error) {
    if (!(error instanceof SandboxError) || error.code === "internal") throw error;
    const message = `failed to unpack ${name}: ${error.message}`;
    throw new BuildFailure(message, "base", { cause: error });
  }
}

/** Gives an image the programs that clients of sandboxes count on, and the authorities that it is to trust. */
async function provide(name: string, tools: BuildTools, authorities: Authorities | undefined): Promise<void> {
  const { workspace, signal, print, options } = tools;
  const { builds } = options.settings;
  // The package manager needs them, and may bring the program that gives them to all others.
  const before = authorities && (await trustAuthorities(await workspace.sandbox(), authorities, { signal }));
  const hasBash = await installPrograms(await workspace.sandbox(), {
    signal,
    print: (level, line) => print(level, level === "debug" ? `[base] ${line}` : line),
    hasInternet: builds.allowInternetAccess && options.backend.offline !== true,
    proxies: tools.proxies,
    timeoutMs: builds.installTimeout,
  });
  if (!hasBash) throw new BuildFailure(`${name} has no bash, which builds and sandboxes need`, "base");
  if (authorities === undefined) return;
  const trust = await trustAuthorities(await workspace.sandbox(), authorities, { signal, before });
  if (trust.state !== "failed") return;
  const whose = authorities.isNamed ? "the operator's authorities" : "the authorities of this host";
  print(authorities.isNamed ? "warn" : "debug", `${name} does not trust ${whose}: ${trust.problem}`);
}

/** Equal files of equal times make equal archives. */
const WORDS = [
  "--create",
  "--sort=name",
  "--format=posix",
  "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime",
  "--numeric-owner",
  "--one-file-system",
  "--xattrs",
  "--xattrs-include=security.capability",
];

/** Copies a directory into an image. @throws BuildFailure, the signal's reason */
async function imageOfDirectory(options: {
  readonly programs: HostPrograms;
  /** For layouts, as for `makeImage`. */
  readonly parent: string;
  /** Absolute path of a root file system on this host, which is read alone. */
  readonly path: string;
  readonly signal: AbortSignal;
}): Promise<MadeImage> {
  const { programs, parent, path, signal } = options;
  return makeImage(parent, async (tar) => {
    const args = [...WORDS, `--file=${tar}`, `--directory=${path}`, "."];
    const { code, output } = await programs.run("tar", { args, cwd: "/", environment: {}, signal });
    if (code !== 0)
      throw new BuildFailure(`directory '${path}' cannot be copied: ${output.trim().slice(-500)}`, "base");
  });
}
