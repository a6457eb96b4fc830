import {
  abortAfter,
  type Clock,
  type Logger,
  parseTemplateReference,
  SandboxError,
  type Snapshots,
} from "@coppice/core";
import type { Backends, Limits, PackSource } from "@coppice/core/backend";
import type { Catalog } from "../catalog/catalog.js";
import type { ImagePusher, PushTarget } from "../images/image-pusher.js";
import { imageSettingsOf, LABEL, type PushedTemplate, readPushedTemplate } from "../model/pushed-template.js";
import { SERVER } from "../model/template-record.js";
import type { TransferReport } from "../model/builder.js";
import type { ImageKeeper } from "../store/image-keeper.js";
import type { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import { REASONS } from "../reasons.js";

export interface TemplatePushesOptions {
  readonly pusher: Pick<ImagePusher, "target">;
  readonly backends: Backends;
  readonly snapshots: Snapshots;
  readonly store: () => TemplatesStore;
  readonly catalog: Catalog;
  readonly keeper: ImageKeeper;
  readonly settings: Pick<TemplatesConfig, "buildTimeout" | "images" | "maxConcurrentPushes">;
  readonly clock: Clock;
  readonly log: Logger;
}

export interface WantedPush {
  readonly tenant: string;
  /** `[namespace/]name[:tag]`, or a snapshot's name or id. */
  readonly source: { readonly template: string } | { readonly snapshot: string };
  readonly target: PushTarget;
}

/** A push that can begin. */
export interface PreparedPush {
  /** @returns the digest of the image. @throws SandboxError, the signal's reason */
  run(report: TransferReport, signal: AbortSignal): Promise<string>;
}

/** What is pushed. */
interface PushSource extends PackSource {
  readonly backend: string;
  readonly bytes: number;
  readonly template: PushedTemplate;
}

/** Of an image's configuration beside its settings. */
const OTHER_BYTES = 1024;

/** Pushes built templates, and snapshots of their sandboxes, to registries. */
export class TemplatePushes {
  readonly #options: TemplatePushesOptions;
  /** Number of pushes by tenant. */
  readonly #running = new Map<string, number>();

  constructor(options: TemplatePushesOptions) {
    this.#options = options;
  }

  /**
   * @throws SandboxError not_found, permission_denied, invalid_argument, failed_precondition, push_limit_reached for a
   * tenant whose other pushes have not ended
   */
  prepare({ tenant, source: wanted, target }: WantedPush): PreparedPush {
    const { pusher, backends, keeper, settings, clock, log } = this.#options;
    const running = this.#running;
    if ((running.get(tenant) ?? 0) >= settings.maxConcurrentPushes) {
      const text = `you have reached the maximum number of concurrent pushes (${settings.maxConcurrentPushes}). Wait for one of them to end`;
      throw new SandboxError(REASONS.push_limit_reached, text);
    }
    const source =
      "template" in wanted
        ? this.#template(wanted.template, tenant)
        : this.#snapshot(wanted.snapshot, tenant);
    const place = pusher.target(target);
    const { images } = backends.get(source.backend);
    const pack = images?.pack?.bind(images);
    if (pack === undefined) {
      const text = `backend '${source.backend}' cannot make images of its templates`;
      throw new SandboxError("template_push_unsupported", text);
    }
    const image = imageSettingsOf(source.template);
    const { maxMetadata, maxValues } = settings.images;
    const isTooLong = Buffer.byteLength(JSON.stringify(image)) > maxMetadata - OTHER_BYTES;
    // A pull would not read it back.
    if (isTooLong || readPushedTemplate(image.Labels[LABEL], maxValues) === undefined) {
      const text = `commands and variables of more than ${maxMetadata - OTHER_BYTES} bytes or ${maxValues} values cannot be in an image`;
      throw new SandboxError("template_push_unsupported", text);
    }
    return {
      async run(report, signal) {
        running.set(tenant, (running.get(tenant) ?? 0) + 1);
        using _count = {
          [Symbol.dispose]: () => {
            const left = (running.get(tenant) ?? 1) - 1;
            if (left === 0) running.delete(tenant);
            else running.set(tenant, left);
          },
        };
        using layers = keeper.layersOf(tenant, source.backend);
        layers.hold(source.image);
        const aborting = new AbortController();
        const { buildTimeout: timeoutMs } = settings;
        const overdue = (): Error =>
          new SandboxError(REASONS.image_not_pushed, `the push timed out after ${timeoutMs / 1000}s`);
        using _limit = abortAfter(aborting, { clock, timeoutMs, overdue });
        const digest = await place.push(
          { archive: (until) => pack(source, until), bytes: source.bytes, settings: image },
          { tenant, report, signal: AbortSignal.any([signal, aborting.signal]) },
        );
        log.info({ image: target.reference, digest, ...wanted }, "an image was pushed");
        return digest;
      },
    };
  }

  #template(name: string, tenant: string): PushSource {
    const found = this.#options.catalog.resolve(parseTemplateReference(name), tenant);
    if (found === undefined)
      throw new SandboxError("template_not_found", `there is no built template '${name}'`);
    const { owner } = found.template;
    if (owner !== tenant && owner !== SERVER)
      throw new SandboxError(REASONS.template_not_owned, "User does not have access to the template");
    const { backend, limits, result } = found.build;
    const { image, context, start, bytes } = result;
    return { backend, image, bytes, template: { ...context, start, limits: limitsOf(limits) } };
  }

  #snapshot(name: string, tenant: string): PushSource {
    const found = this.#options.snapshots.of(tenant).find(name);
    if (found === undefined) throw new SandboxError("snapshot_not_found", `snapshot '${name}' not found`);
    const { id, backend, build } = found;
    if (build === undefined) {
      const text = `snapshot '${name}' is of a sandbox without a built template, and cannot be an image`;
      throw new SandboxError("template_push_unsupported", text);
    }
    const { builds, copies } = this.#options.store();
    const { limits, result = copies.get({ id: build.id })?.result } = builds.get({ id: build.id }) ?? {};
    const { start } = build;
    const environment = result?.context.environment ?? start?.environment ?? {};
    return {
      backend,
      image: build.image.id,
      snapshot: id,
      bytes: result?.bytes ?? 0,
      template: {
        environment,
        user: build.image.user,
        workdir: build.image.workdir,
        start,
        limits: limitsOf({ ...limits, ...build.limits, ...found.limits }),
      },
    };
  }
}

function limitsOf({ cpuCount, memoryMiB, diskMiB }: Limits): PushedTemplate["limits"] {
  return { cpuCount, memoryMiB, diskMiB };
}
