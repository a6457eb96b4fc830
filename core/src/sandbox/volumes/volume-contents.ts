import { SandboxError } from "../../kernel/errors.js";
import type { Sandbox, VolumeId } from "../contract/backend.js";
import { limitCreation, type SandboxServices } from "../ledger/sandbox-services.js";
import { newId } from "../../kernel/secrets.js";
import type { OpenVolume, VolumeRecord } from "../model/volumes.js";
import { posix } from "node:path";
import type { FileInfo, Files } from "../contract/files.js";

/** A temporary sandbox that gives access to a volume. */
interface Opened {
  readonly sandbox: Promise<Sandbox>;
  /** Aborted when it must not be used any more. */
  readonly closing: AbortController;
  readonly owner: string;
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

  #make({ id, owner, backend: name }: VolumeRecord): Opened {
    if (this.#isClosed) throw new SandboxError("server_stopping", "the server is stopping");
    this.#makeRoom(owner);
    const closing = new AbortController();
    const sandbox = this.#provision(id, name, closing);
    const opened: Opened = { sandbox, closing, owner, users: 0, cancelIdle: undefined };
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

  /** Closes an unused one where that is needed. @throws SandboxError unavailable when the tenant's are all in use. */
  #makeRoom(tenant: string): void {
    const { settings, tenants } = this.#services;
    const most = settings.openVolumes.maximum;
    const all = [...this.#opened];
    const own = all.filter(([, { owner }]) => owner === tenant);
    if (tenants.refusal({ tenant, most, used: all.length, own: own.length }) === undefined) return;
    // Where the server has room, its own share is used up.
    const unused = (all.length < most ? own : all).find(([, { users }]) => users === 0);
    if (unused === undefined) {
      const text = "too many volumes are being read and written (sandboxes.openVolumes), please retry";
      throw new SandboxError("server_busy", text);
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

/** The files below a directory, by paths that begin there. @param directory absolute, and not `/`. */
function filesBelow(files: Files, directory: string): Omit<Files, "watch" | "hostPath"> {
  // No `..` leads above the directory; links in it are resolved by the underlying files.
  const within = (path: string): string => posix.join(directory, posix.resolve("/", path));
  const shown = (path: string): string => {
    if (path === directory) return "/";
    return path.startsWith(`${directory}/`) ? path.slice(directory.length) : path;
  };
  const out = ({ symlinkTarget, ...info }: FileInfo): FileInfo => {
    const path = shown(info.path);
    const target = symlinkTarget !== undefined && { symlinkTarget: shown(symlinkTarget) };
    return { ...info, path, name: posix.basename(path), ...target };
  };
  const change = files.change?.bind(files);
  return {
    stat: async (path) => out(await files.stat(within(path))),
    async *list(path, depth) {
      for await (const info of files.list(within(path), depth)) yield out(info);
    },
    async read(path) {
      const file = await files.read(within(path));
      return {
        info: out(file.info),
        content: (options) => file.content(options),
        ...(file.direct && { direct: file.direct.bind(file) }),
        [Symbol.asyncDispose]: () => file[Symbol.asyncDispose](),
      };
    },
    write: async (path, data, options) => out(await files.write(within(path), data, options)),
    makeDir: async (path, options) => out(await files.makeDir(within(path), options)),
    move: async (source, target, options) => out(await files.move(within(source), within(target), options)),
    remove: (path) => files.remove(within(path)),
    ...(change && { change: async (path, wanted) => out(await change(within(path), wanted)) }),
  };
}
