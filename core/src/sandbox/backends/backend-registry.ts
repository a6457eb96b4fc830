import { SandboxError } from "../../kernel/errors.js";
import { currentOwner } from "../../kernel/owner.js";
import type { Backends, SandboxBackend } from "../contract/backend.js";

/** The backends that plugins added, in that order. */
export class BackendRegistry implements Backends {
  readonly #backends = new Map<string, SandboxBackend>();
  readonly #owners = new Map<string, string>();
  #default: string | undefined;

  add(backend: SandboxBackend): void {
    if (this.#backends.has(backend.name)) {
      throw new SandboxError("backend_exists", `there are two backends named '${backend.name}'`);
    }
    this.#backends.set(backend.name, backend);
    this.#owners.set(backend.name, currentOwner());
  }

  ownerOf(name: string): string {
    return this.#owners.get(name) ?? "core";
  }

  get(name: string): SandboxBackend {
    const backend = this.#backends.get(name);
    if (backend === undefined) throw new SandboxError("backend_not_found", `backend '${name}' not found`);
    return backend;
  }

  all(): readonly SandboxBackend[] {
    return [...this.#backends.values()];
  }

  /** Backend of sandboxes whose template and creator choose none. @throws SandboxError failed_precondition */
  default(): SandboxBackend {
    if (this.#default === undefined) {
      throw new SandboxError("backend_missing", "the server has no default backend");
    }
    return this.get(this.#default);
  }

  get defaultName(): string | undefined {
    return this.#default;
  }

  setDefault(name: string | undefined): void {
    this.#default = name;
  }

  /** Removes a backend that this host cannot run. */
  leaveOut(name: string): void {
    this.#backends.delete(name);
  }
}
