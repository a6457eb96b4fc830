import { createHash } from "node:crypto";
import type { Clock, Logger } from "@coppice/core";
import type { SandboxBackend } from "@coppice/core/backend";
import type { DebianImages } from "../debian/debian-image.js";
import type { HostPrograms } from "../images/host-programs.js";
import type { ImagePuller } from "../images/image-puller.js";
import type { LogLevel } from "../model/build-record.js";
import type { BuildRequest, BuildStep } from "../model/build-request.js";
import type { BuildSurroundings } from "../model/builder.js";
import type { Layer } from "../model/layer.js";
import type { TemplatesConfig } from "../templates-config.js";
import type { StepProxies } from "../guest/step-proxies.js";
import { Workspace } from "../guest/workspace.js";

/** A duration in whole seconds as Go prints it: `12s`, `1m5s`, `1h0m0s`. */
export function durationText(durationMs: number): string {
  const seconds = Math.floor(durationMs / 1000);
  const minutes = Math.floor(seconds / 60);
  const hours = Math.floor(minutes / 60);
  if (hours > 0) return `${hours}h${minutes % 60}m${seconds % 60}s`;
  return minutes > 0 ? `${minutes}m${seconds % 60}s` : `${seconds}s`;
}

/** Changes when builds make other files of the same request. */
const VERSION = 2;

/** Key of a layer that depends on nothing but these. */
export function baseKey(...parts: readonly (string | number | object | undefined)[]): string {
  return keyOf([VERSION, ...parts]);
}

/** Key of the layer that a step makes of another layer. */
export function stepKey(parent: string, { type, args, filesHash }: Omit<BuildStep, "force">): string {
  return keyOf([parent, type.toUpperCase(), args, filesHash]);
}

function keyOf(parts: readonly unknown[]): string {
  return createHash("sha256").update(JSON.stringify(parts)).digest("hex");
}

export interface BuildServices {
  readonly programs: HostPrograms;
  readonly puller: ImagePuller;
  readonly debian: DebianImages;
  /** Directory for image layouts, each in a directory of its own that is removed after its use. */
  readonly layouts: () => string;
  readonly settings: Pick<TemplatesConfig, "builds" | "images">;
  readonly clock: Clock;
  readonly log: Logger;
}

interface BuildToolsOptions extends BuildServices {
  readonly request: BuildRequest;
  readonly surroundings: BuildSurroundings;
  readonly backend: SandboxBackend;
  readonly images: NonNullable<SandboxBackend["images"]>;
  readonly proxies: StepProxies;
}

/** Where a build has come to. */
export type Progress = Omit<Layer, "tenant" | "backend">;

/** A layer as the log has it: `[CACHED ][prefix] text [key]`. */
interface Announcement {
  readonly prefix: string;
  readonly text: string;
  readonly key: string;
  readonly isCached: boolean;
}

/** What the phases of one build share. */
export class BuildTools implements AsyncDisposable {
  readonly options: BuildToolsOptions;
  readonly workspace: Workspace;
  /** Variables of the proxies for commands. */
  readonly proxies: StepProxies["variables"];
  /** `base`, the number of a step, or `finalize`. */
  step: string | undefined;
  /** True when nothing is to come from the cache any more. */
  isForced: boolean;

  constructor(options: BuildToolsOptions) {
    const { proxies, request, surroundings, settings } = options;
    this.options = options;
    this.isForced = request.force;
    const { services: reaches, variables, unreachable } = proxies;
    this.proxies = variables;
    if (unreachable.length > 0)
      this.print(
        "warn",
        `commands of this build get no ${unreachable.join(" and ")}: a sandbox cannot reach a proxy on loopback`,
      );
    this.workspace = new Workspace({
      ...options,
      layers: surroundings.layers,
      allowInternetAccess: settings.builds.allowInternetAccess,
      reaches,
      signal: surroundings.signal,
    });
  }

  get signal(): AbortSignal {
    return this.options.surroundings.signal;
  }

  /** Writes a line into the log of the build. */
  readonly print = (level: LogLevel, message: string): void => {
    this.options.surroundings.log({ level, message, step: this.step });
  };

  announce({ prefix, text, key, isCached }: Announcement): void {
    this.print("info", `${isCached ? "CACHED " : ""}[${prefix}] ${text} [${key}]`);
  }

  /** The layer of an earlier build, whether or not this one is forced. */
  find(key: string): Progress | undefined {
    const { request, surroundings } = this.options;
    return surroundings.layers.find({ key, tenant: request.tenant, backend: request.backend });
  }

  /** The layer of an earlier build, unless this one is forced. */
  cached(key: string): Progress | undefined {
    return this.isForced ? undefined : this.find(key);
  }

  /** Keeps a layer for later builds. */
  keep(progress: Progress): Progress {
    const { request, surroundings } = this.options;
    surroundings.layers.add({ ...progress, tenant: request.tenant, backend: request.backend });
    return progress;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.workspace[Symbol.asyncDispose]();
  }
}
