/** A directory of the host that a sandbox sees, and cannot change. */
export interface Bind {
  /** Path inside the sandbox, where the template has a directory or file to be covered. */
  readonly target: string;
  /** Path on the host. */
  readonly source: string;
}

/** A directory of its own on top of directories of the host. */
export interface Overlay {
  readonly target: string;
  /** Host paths, the topmost first. */
  readonly lowers: readonly string[];
}

/** Layers and mounts of a template, read-only and shared by all of its sandboxes. */
export interface PreparedTemplate {
  readonly name: string;
  /** Host paths of what becomes the root, the topmost first. */
  readonly lowers: readonly string[];
  readonly binds: readonly Bind[];
  readonly overlays: readonly Overlay[];
}
