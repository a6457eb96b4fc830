/** Kinds of failure, in Connect's vocabulary. */
export type ErrorCode =
  | "canceled"
  | "unknown"
  | "invalid_argument"
  | "deadline_exceeded"
  | "not_found"
  | "already_exists"
  | "permission_denied"
  | "resource_exhausted"
  | "failed_precondition"
  | "aborted"
  | "out_of_range"
  | "unimplemented"
  | "internal"
  | "unavailable"
  | "data_loss"
  | "unauthenticated";

/** Why something is refused. A plugin declares its own; a released name keeps its meaning and its code. */
export interface DeclaredReason {
  /** The name, for clients and logs. */
  readonly reason: string;
  readonly code: ErrorCode;
  /** HTTP status, where it is not that of the code. */
  readonly status?: number | undefined;
  /** `when it happens | what to do`, as in the table of docs/errors.md. */
  readonly text?: string;
}

type Texts = Readonly<Partial<Record<ErrorCode, Readonly<Record<string, string>>>>>;
type NamesOf<T extends Texts> = { [C in keyof T]: keyof T[C] }[keyof T] & string;

/**
 * Reasons by name, for `reasons` of a plugin and for its errors: `new SandboxError(REASONS.name, "…")`.
 * @param texts by code and name: `when it happens | what to do`.
 * @param statuses HTTP statuses of those whose status is not that of the code.
 */
export function declareReasons<const T extends Texts>(
  texts: T,
  statuses?: Readonly<Partial<Record<NamesOf<T>, number>>>,
): Readonly<Record<NamesOf<T>, DeclaredReason>> {
  const entries = Object.entries(texts as Record<ErrorCode, Record<string, string>>).flatMap(
    ([code, named]) =>
      Object.entries(named).map(([reason, text]) => {
        const status = (statuses as Readonly<Record<string, number>> | undefined)?.[reason];
        return [reason, { reason, code: code as ErrorCode, status, text }] as const;
      }),
  );
  return Object.fromEntries(entries) as Record<NamesOf<T>, DeclaredReason>;
}

/** Reasons of core, and of the contract of backends: those that more than one package raises are here. */
export const REASONS = declareReasons(
  {
    canceled: {
      client_gone: "The client has gone before the answer. | Nothing.",
      connection_closed: "The server closed a connection to the sandbox. | Connect again.",
    },
    invalid_argument: {
      request_invalid: "A field of the body, query or headers is wrong. | Correct what the message names.",
      json_invalid: "The body or frame is not JSON. | Send JSON.",
      usage_invalid: "A command line is wrong. | Read the usage.",
      cursor_invalid: "The token of a page is not the server's. | Begin with the first page.",
      target_invalid:
        "The path is not plain, or the target not a URL. | Leave `//`, `..` and backslashes out.",
      host_invalid: "`Host` is given twice, or names no sandbox. | Use the host that the SDK makes.",
      port_invalid: "A port is not a number from 1 to 65535. | Correct the port.",
      sandbox_id_invalid: "A sandbox id has the wrong form. | Use the id that the creation returned.",
      sandbox_not_named: "The request names no sandbox. | Send `E2b-Sandbox-Id`.",
      timeout_invalid: "A time-out is missing, 0 or too long. | See `sandboxes.maximumTimeout`.",
      lifecycle_invalid:
        "`autoResume` or `autoPauseMemory` without a pause, or both. | Ask for a pause that fits.",
      readiness_probe_invalid: "A readiness probe is wrong. | Correct what the message names.",
      limits_invalid: "A limit is above what clients may choose. | See `sandboxes.maximumLimits`.",
      network_rules_invalid: "Network rules are wrong, or name domains. | Name addresses and ranges.",
      network_rules_unsupported: "The backend has no network rules. | Use another backend.",
      template_reference_invalid: "A template's name or tag has the wrong form. | Write `name:tag`.",
      mounts_invalid: "Mounts overlap, or their paths cannot be used. | Choose other paths.",
      volume_name_invalid: "A volume's name has the wrong form. | Use letters, digits, `-`, `_`.",
      volume_size_invalid: "A volume's size is too large or 0. | See `sandboxes.maximumVolumeSize`.",
      image_invalid: "An image cannot be unpacked. | Read the message.",
      snapshot_of_other_template: "A snapshot is not of the template. | Name the template it is of.",
      command_invalid: "A command cannot be started as given. | Correct program, arguments or `cwd`.",
      cwd_not_found: "The directory of a command does not exist. | Make it first.",
      signal_invalid: "The sandbox's kernel refuses a signal. | Send another one.",
      terminal_size_invalid: "A terminal's size is out of bounds. | Choose 1 to 65535 columns and rows.",
      frame_invalid: "A WebSocket message is not a known frame. | See `legacy-shims`.",
      session_id_invalid: "A session id has the wrong form, or is the server's. | Use another.",
      path_invalid: "A path is relative, too long, or has a NUL byte. | Correct the path.",
      path_is_directory: "A file is needed. | Name a file.",
      path_is_file: "A directory is needed. | Name a directory.",
      file_not_regular: "A regular file is needed. | Name one that is no device, pipe or socket.",
      move_into_itself: "The source is the destination, or has it inside. | Choose another.",
      root_not_removable: "A root directory cannot be removed. | Remove what is in it.",
      network_mount_not_watchable: "The directory is on a network file system. | List it instead.",
      metadata_invalid: "Metadata of a file are wrong or too large. | Correct them.",
      upload_invalid: "An upload is malformed, or has too many parts. | Correct what the message names.",
      body_too_large: "A body is larger than its limit. | Send less, or raise the plugin's limit.",
    },
    deadline_exceeded: {
      backend_timeout: "A backend took too long. | Read the log; see `sandboxes.createTimeout`.",
    },
    not_found: {
      route_not_found: "Nothing is served at this path. | Check the path and the listener.",
      sandbox_not_found: "No sandbox of the tenant has this id any more. | Create one.",
      sandbox_paused: "A paused sandbox cannot do this. | Resume it.",
      backend_not_found: "No plugin has a backend of this name. | See `sandboxes.templates`.",
      template_not_found: "No template has this name. | See `sandboxes.templates`.",
      template_tag_not_found: "The template has no such tag. | Leave the tag out.",
      image_not_found: "The backend has no image with this id. | Build the template again.",
      snapshot_not_found: "No snapshot of the tenant has this id. | List the snapshots.",
      volume_not_found: "No volume of the tenant has this id. | List the volumes.",
      process_not_found: "No process has this pid or tag, or it has ended. | List the processes.",
      account_not_found: "The sandbox has no such user. | Use one of its `/etc/passwd`.",
      path_not_found: "There is no such file or directory. | List its parent.",
    },
    already_exists: {
      backend_exists: "Two backends have one name. | Rename one.",
      sandbox_exists: "The id of a sandbox is taken. | Leave the id to the server.",
      snapshot_name_taken: "A template has the name of a snapshot. | Choose another name.",
      volume_exists: "A volume has this name. | Choose another name.",
      path_exists: "A file or directory is there already. | Remove it, or choose another path.",
      idempotency_key_reused: "The key was used for another request. | Use a new key.",
      idempotent_sandbox_ended: "The sandbox made with this key has ended. | Use a new key.",
    },
    permission_denied: {
      scope_missing: "The credential lacks a scope. | Use a key with the scope that the message names.",
      host_not_allowed: "A listener on loopback does not know the host. | See `http.allowedHosts`.",
      origin_not_allowed:
        "A web page from elsewhere. | See `http.allowedOrigins`, `legacy-shims.allowedOrigins`.",
      traffic_token_invalid: "The traffic token is missing or wrong. | Send `e2b-traffic-access-token`.",
      path_not_permitted: "The user may not do this with the file. | Be another user, or change its mode.",
      spawn_not_permitted: "The user may not start a command here. | Choose another `cwd` or user.",
      signal_not_permitted: "The process belongs to another user. | Be that user.",
    },
    resource_exhausted: {
      sandbox_limit_reached: "The server has as many sandboxes as it may. | See `sandboxes.maximum`.",
      snapshot_limit_reached: "As many snapshots as there may be. | See `sandboxes.maximumSnapshots`.",
      volume_limit_reached: "As many volumes as there may be. | See `sandboxes.maximumVolumes`.",
      command_limit_reached: "The sandbox runs as many commands as it may. | See `commands`.",
      execution_limit_reached: "Too many executions run or wait. | See `jupyter`, `legacy-shims`.",
      socket_limit_reached: "Too many WebSockets are open. | See `maxSockets` of the plugin.",
      exchange_limit_reached: "Too many requests to the sandbox's ports. | See `http`.",
      watch_limit_reached: "Too many directories are watched. | Watch less; see `files`.",
      listing_limit_reached: "The listing would be too long. | List fewer levels.",
      events_lost: "Events of files came faster than they were read. | List, and watch again.",
      disk_full: "No space or no inodes are left. | Remove files, or raise `diskMiB`.",
      file_too_large: "A file is larger than the file system takes. | Write less.",
      addresses_exhausted: "No network address is free. | End sandboxes, or enlarge the range.",
      image_too_large: "An image has more bytes or files than allowed. | Use a smaller one.",
      host_resources_exhausted: "The host lacks memory, processes or descriptors. | Raise its limits.",
    },
    failed_precondition: {
      backend_missing: "The server has no backend. | Enable one; see `sandboxes.defaultBackend`.",
      host_unusable: "A backend cannot use this host. | `coppice doctor`.",
      pausing_unsupported: "The backend cannot pause in this way. | See `memory`, or use another backend.",
      resizing_unsupported: "The backend cannot resize. | Use another backend.",
      snapshots_unsupported: "The backend has no snapshots. | Use another backend.",
      volumes_unsupported: "The backend has no volumes. | Use another backend.",
      template_push_unsupported: "No image can be made of the template or snapshot. | Build a template.",
      template_unusable: "A template cannot be made or built. | Read the log of the server.",
      image_too_deep: "An image would stand on too many others. | Build it in fewer steps.",
      limits_below_use: "The sandbox uses more than the new limit. | Free memory or disk first.",
      account_missing: "The template lacks a user. | Add the user to the template.",
      stdin_closed: "The command has no open stdin. | Start it with `stdin: true`.",
      terminal_missing: "The command has no terminal. | Start it with one.",
      terminal_unavailable: "No terminal can be had here. | Read the message.",
      port_closed: "Nothing listens on the port in the sandbox. | Start the program first.",
      file_closed: "A file was used after its end. | Open it again.",
      symlink_loop: "A symbolic link leads to itself. | Correct the link.",
      directory_not_empty: "A directory is not empty. | Remove what is in it.",
      path_busy: "The path is in use. | End what uses it.",
      cross_device_link: "Source and destination are on two file systems. | Copy instead.",
    },
    aborted: {
      sandbox_being_killed: "The sandbox is being ended. | Create another.",
      sandbox_transitioning: "The sandbox is being paused, resumed or snapshotted. | Try again.",
      sandbox_state_conflict: "The state of the sandbox does not allow this. | Look at its `state`.",
      sandbox_ended_meanwhile: "The sandbox ended during the request. | Create another.",
      server_stopped: "The server stopped during the request. | Try again.",
      process_ended: "The process ended during the request. | Nothing.",
      connection_lost: "The program in the sandbox closed the connection. | Connect again.",
    },
    unimplemented: {
      method_not_allowed: "The path takes other methods. | See `Allow`.",
      upgrade_required: "The path is a WebSocket. | Ask for an upgrade, and let proxies pass it on.",
    },
    internal: {
      internal_error: "A bug in Coppice, or an unforeseen failure of the host. | Read the log; report it.",
      file_operation_failed: "The sandbox's kernel failed an operation unexpectedly. | Read the message.",
    },
    unavailable: {
      server_stopping: "The server is stopping. | Try again when it is back.",
      server_busy: "Too many requests wait for the same thing. | Try again.",
      store_unavailable: "The server cannot write to its disk. | Free space; look at `/readyz`.",
      sandbox_ended: "The sandbox has ended. | Create another.",
      sandbox_lost: "The sandbox ended on its own. | Raise its limits; read the message.",
      sandbox_stopped: "The sandbox is stopped. | Resume it.",
      sandbox_not_running: "The sandbox is not running yet, or no more. | Try again, or create another.",
      sandbox_not_ready: "The readiness probe did not succeed in time. | Correct template or probe.",
      sandbox_not_enterable: "The sandbox could not be entered. | Read the log.",
      destruction_pending: "Something could not be removed yet; the server keeps trying. | Read the log.",
      pause_failed: "The sandbox could not be paused. | Try again; read the log.",
      resume_failed: "The sandbox could not be resumed. | Try again; read the log.",
      snapshot_failed: "The snapshot could not be taken. | Try again; read the log.",
      volume_failed: "The volume could not be made. | Try again; read the log.",
      volume_closed: "The volume was closed during the request. | Try again.",
      agent_unavailable: "The agent did not start, or its connection broke. | Read the log.",
      path_unstable: "The path keeps changing while it is used. | Try again.",
    },
    data_loss: {
      file_shrank: "A file shrank while it was read. | Read it again.",
    },
    unauthenticated: {
      credential_missing: "No API key and no token. | Send `X-API-Key` or `Authorization`.",
      access_token_invalid: "The sandbox's access token is missing or wrong. | Send `X-Access-Token`.",
      signature_invalid: "The signature of a file URL is missing or wrong. | Sign the URL again.",
      signature_expired: "The signature of a file URL has expired. | Sign the URL again.",
      volume_token_invalid: "There is no such volume, or the token is not its own. | Use its token.",
      user_unknown: "The sandbox has no user of this name. | Use one of its `/etc/passwd`.",
    },
  },
  {
    body_too_large: 413,
    method_not_allowed: 405,
    upgrade_required: 426,
    volume_exists: 400,
  },
);

export type Reason = keyof typeof REASONS;

/** Reason of a plugin outside of this repository, in its own name: `{ reason: "acme.no_licence", code: "unavailable" }`. */
export interface PluginReason extends DeclaredReason {
  readonly reason: `${string}.${string}`;
}
