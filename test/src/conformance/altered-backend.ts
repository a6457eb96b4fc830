import type { Files, Process, Sandbox, SandboxBackend, SandboxSpec } from "@coppice/core/backend";

/** Changes to a backend. Absent members stay as they are. */
export interface Alterations {
  readonly isolated?: boolean;
  readonly specification?: (spec: SandboxSpec) => SandboxSpec;
  /** Members of each sandbox, made of those of the real one. */
  readonly sandbox?: (real: Sandbox) => Partial<Sandbox>;
  readonly files?: (real: Files) => Partial<Files>;
  readonly process?: (real: Process) => Partial<Process>;
}

/** A real backend with something wrong about it. */
export function alter(real: SandboxBackend, alterations: Alterations): SandboxBackend {
  const { specification = (spec: SandboxSpec) => spec } = alterations;
  return {
    name: real.name,
    isolated: alterations.isolated ?? real.isolated,
    check: () => real.check(),
    recover: () => real.recover(),
    ...(real.volumes && { volumes: real.volumes }),
    async provision(spec, signal) {
      return alterSandbox(await real.provision(specification(spec), signal), alterations);
    },
  };
}

function alterSandbox(real: Sandbox, alterations: Alterations): Sandbox {
  const files = { ...delegateFiles(real), ...alterations.files?.(real.files) };
  const sandbox: Sandbox = {
    id: real.id,
    files,
    spawn: (command) => real.spawn(command),
    user: (name) => real.user(name),
    dial: (port, signal) => real.dial(port, signal),
    stats: () => real.stats(),
    destroy: () => real.destroy(),
    ...(real.pausing && { pausing: real.pausing }),
    ...(real.stopping && { stopping: real.stopping }),
    ...(real.snapshots && { snapshots: real.snapshots }),
    ...(real.resizing && { resizing: real.resizing }),
    ...(real.networking && { networking: real.networking }),
    ...alterations.sandbox?.(real),
  };
  return {
    ...sandbox,
    async spawn(command) {
      const process = await sandbox.spawn(command);
      return { ...delegateProcess(process), ...alterations.process?.(process) };
    },
  };
}

/** A sandbox that starts again has a new `files`. */
function delegateFiles(sandbox: Sandbox): Files {
  return {
    stat: (path) => sandbox.files.stat(path),
    list: (path, depth) => sandbox.files.list(path, depth),
    read: (path) => sandbox.files.read(path),
    write: (path, data, options) => sandbox.files.write(path, data, options),
    makeDir: (path, options) => sandbox.files.makeDir(path, options),
    move: (source, destination, options) => sandbox.files.move(source, destination, options),
    remove: (path) => sandbox.files.remove(path),
    ...(sandbox.files.watch && {
      watch: (path, options) => sandbox.files.watch?.(path, options) ?? Promise.reject(new Error("no watch")),
    }),
  };
}

function delegateProcess(real: Process): Process {
  return {
    pid: real.pid,
    output: real.output,
    exit: real.exit,
    write: (data) => real.write(data),
    closeInput: () => real.closeInput(),
    kill: (signal, scope) => real.kill(signal, scope),
    resize: (size) => real.resize(size),
  };
}
