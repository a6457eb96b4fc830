import { SandboxError } from "../../kernel/errors.js";
import type { Sandbox, VolumeId } from "../contract/backend.js";
import { limitCreation, type SandboxServices } from "../ledger/sandbox-services.js";
import { filesBelow } from "../contract/files-below.js";
import { newId } from "../backends/sandbox-secrets.js";
import type { OpenVolume, VolumeRecord } from "../model/volumes.js";

/** A temporary sandbox that gives access to a volume. */
interface Opened {
  readonly sandbox: Promise<Sandbox>;
  /** Aborted when it must not be used any more. */
  readonly closing: AbortController;
  users: number;
  /** Cancels the close for idleness. */
  cancelIdle: (() => void) | undefined;
}

const MOUNTED_AT = "/volume";

/**
 * Access to the contents of volumes without a client's sandbox. Each volume is opened by a temporary sandbox of its
 * own, which no client can reach: links in a volume lead to no files of the host or of others. It is not in the ledger,
 * so the next server destroys those that a crash leaves.
 */
export class VolumeContents {
  readonly #services: SandboxServices;
  readonly #opened = new Map<VolumeId, Opened>();
  readonly #closed = new Set<Promise<void>>();
  #isClosed = false;

  constructor(services: SandboxServices) {
    this.#services = services;
  }

  /** @throws SandboxError unavailable when too many are open, or the backend's error. */
  async open(volume: VolumeRecord): Promise<OpenVolume> {
    const opened = this.#opened.get(volume.id) ?? this.#make(volume);
    opened.users += 1;
    opened.cancelIdle?.();
    opened.cancelIdle = undefined;
    let isUsed = true;
    const leave = (): void => {
      if (!isUsed) return;
      isUsed = false;
      opened.users -= 1;
      if (opened.users === 0) this.#closeLater(volume.id, opened);
    };
    try {
      const { files } = await opened.sandbox;
      return {
        files: filesBelow(files, MOUNTED_AT),
        [Symbol.asyncDispose]: async () => leave(),
      };
    } catch (error) {
      leave();
      throw error;
    }
  }

  /** Ends all use of a volume. Resolves when its sandbox here is removed, or failed to be for now. */
  async close(id: VolumeId): Promise<void> {
    const opened = this.#opened.get(id);
    if (opened !== undefined) await this.#close(id, opened);
  }

  /** Ends all use of all volumes, permanently. */
  async closeAll(): Promise<void> {
    this.#isClosed = true;
    await Promise.all([...this.#opened].map(([id, opened]) => this.#close(id, opened)));
    await Promise.all(this.#closed);
  }

  #make({ id, backend: name }: VolumeRecord): Opened {
    if (this.#isClosed) throw new SandboxError("server_stopping", "the server is stopping");
    this.#makeRoom();
    const closing = new AbortController();
    const sandbox = this.#provision(id, name, closing);
    const opened: Opened = { sandbox, closing, users: 0, cancelIdle: undefined };
    this.#opened.set(id, opened);
    const gone = (): void => void this.#close(id, opened);
    sandbox.then(({ lost }) => void lost?.then(gone), gone);
    return opened;
  }

  async #provision(volume: VolumeId, name: string, closing: AbortController): Promise<Sandbox> {
    const { backends, settings } = this.#services;
    const backend = backends.get(name);
    const isOfDefault = backend === backends.default();
    const [template] =
      Object.entries(settings.templates).find(([, one]) =>
        one.backend === undefined ? isOfDefault : one.backend === name,
      ) ?? [];
    if (template === undefined) {
      throw new SandboxError("volumes_unsupported", `no template is made by backend '${name}'`);
    }
    using _limit = limitCreation(closing, this.#services, `backend '${name}' did not open the volume`);
    const mounts = [{ volume, path: MOUNTED_AT, readOnly: false }];
    const spec = { id: newId("sandbox"), template, limits: {}, allowInternetAccess: false, mounts };
    return await backend.provision(spec, closing.signal);
  }

  /** @throws SandboxError unavailable when all open ones are in use. */
  #makeRoom(): void {
    if (this.#opened.size < this.#services.settings.openVolumes.maximum) return;
    const unused = [...this.#opened].find(([, { users }]) => users === 0);
    if (unused === undefined) {
      throw new SandboxError("server_busy", "too many volumes are being read and written, please retry");
    }
    void this.#close(...unused);
  }

  #closeLater(id: VolumeId, opened: Opened): void {
    const { clock, settings } = this.#services;
    if (this.#opened.get(id) !== opened) return;
    opened.cancelIdle = clock.after(settings.openVolumes.idle, () => void this.#close(id, opened));
  }

  /** Never rejects: failed removals are logged and tried again. */
  async #close(id: VolumeId, opened: Opened): Promise<void> {
    if (this.#opened.get(id) !== opened) return;
    this.#opened.delete(id);
    opened.cancelIdle?.();
    opened.closing.abort(new SandboxError("volume_closed", "the volume was closed"));
    const closed = opened.sandbox.then(
      (sandbox) => this.#services.teardown.destroy(sandbox).soon.catch(() => {}),
      (error: unknown) => {
        this.#services.log.debug({ volume: id, err: error }, "a volume was not opened");
      },
    );
    this.#closed.add(closed);
    await closed;
    this.#closed.delete(closed);
  }
}
