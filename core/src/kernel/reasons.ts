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

export interface ReasonEntry {
  readonly code: ErrorCode;
  /** HTTP status, where it is not that of the code. */
  readonly status: number | undefined;
  /** `when it happens | what to do`, as in the table of docs/errors.md. */
  readonly text: string;
}

/** HTTP statuses of reasons where they are not those of the codes. */
const STATUSES: Readonly<Partial<Record<string, number>>> = {
  build_not_found: 400,
  encoding_not_acceptable: 406,
  upload_length_missing: 411,
  body_too_large: 413,
  file_changed: 412,
  range_not_satisfiable: 416,
  method_not_allowed: 405,
  upgrade_required: 426,
};

function of<const R extends string>(
  code: ErrorCode,
  texts: Readonly<Record<R, string>>,
): Readonly<Record<R, ReasonEntry>> {
  const entries = Object.entries<string>(texts).map(([reason, text]) => [
    reason,
    { code, status: STATUSES[reason], text },
  ]);
  return Object.fromEntries(entries) as Record<R, ReasonEntry>;
}

/**
 * Reasons of refusals, each with its code. `npm run generate` writes them into docs/errors.md. A released name keeps
 * its meaning and its code.
 */
export const REASONS = {
  ...of("canceled", {
    client_gone: "The client has gone before the answer. | Nothing.",
    connection_closed: "The server closed a connection to the sandbox. | Connect again.",
    watch_closed: "The server closed a watch. | Watch again.",
  }),
  ...of("invalid_argument", {
    request_invalid: "A field of the body, query or headers is wrong. | Correct what the message names.",
    json_invalid: "The body or frame is not JSON. | Send JSON.",
    usage_invalid: "A command line is wrong. | Read the usage.",
    cursor_invalid: "The token of a page is not the server's. | Begin with the first page.",
    target_invalid: "The path is not plain, or the target not a URL. | Leave `//`, `..` and backslashes out.",
    host_invalid: "`Host` is given twice, or names no sandbox. | Use the host that the SDK makes.",
    port_invalid: "A port is not a number from 1 to 65535. | Correct the port.",
    sandbox_id_invalid: "A sandbox id has the wrong form. | Use the id that the creation returned.",
    sandbox_not_named: "The request names no sandbox. | Send `E2b-Sandbox-Id`.",
    timeout_invalid: "A time-out is missing, 0 or too long. | See `sandboxes.maximumTimeout`.",
    lifecycle_invalid: "`autoResume` or `autoPauseMemory` without a pause. | Ask for a pause, too.",
    secure_required: "A sandbox is neither public nor `secure`. | Create it with `secure: true`.",
    readiness_probe_invalid: "A readiness probe is wrong. | Correct what the message names.",
    limits_invalid: "A limit is above what clients may choose. | See `sandboxes.maximumLimits`.",
    network_rules_invalid: "Network rules are wrong, or name domains. | Name addresses and ranges.",
    network_rules_unsupported: "The backend has no network rules. | Use another backend.",
    template_reference_invalid: "A template's name or tag has the wrong form. | Write `name:tag`.",
    template_build_invalid: "A build of a template is asked for wrongly. | Correct what the message names.",
    template_limits_invalid: "A template asks for too much or for odd limits. | See `templates`.",
    image_target_invalid: "An image cannot be pushed to a place of that name. | Correct the reference.",
    upload_length_missing: "An upload has no `Content-Length`. | Send one.",
    template_file_invalid: "A template file, or a file it names, cannot be read. | Correct it.",
    mounts_invalid: "Mounts overlap, or their paths cannot be used. | Choose other paths.",
    volume_name_invalid: "A volume's name has the wrong form. | Use letters, digits, `-`, `_`.",
    volume_size_invalid: "A volume's size is too large or 0. | See `sandboxes.maximumVolumeSize`.",
    image_invalid: "An image cannot be unpacked. | Read the message.",
    snapshot_of_other_template: "A snapshot is not of the template. | Name the template it is of.",
    command_invalid: "A command cannot be started as given. | Correct program, arguments or `cwd`.",
    cwd_not_found: "The directory of a command does not exist. | Make it first.",
    process_selector_invalid: "A command is named by neither pid nor id. | Use the pid of its start.",
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
    archive_invalid: "A tar archive is broken or too large. | Read the message; see `commands-v1`.",
    archive_unsafe: "An entry of an archive leaves its directory. | Remove the entry.",
    upload_invalid: "An upload is malformed, or has too many parts. | Correct what the message names.",
    webhook_url_invalid: "The host of a webhook is no public address. | See `events.webhooks`.",
    host_setting_invalid: "A backend's setting does not fit this host. | Correct the configuration.",
    encoding_not_acceptable: "No wanted encoding is served. | Accept `gzip` or `identity`.",
    body_too_large: "A body is larger than its limit. | Send less, or raise the plugin's limit.",
  }),
  ...of("deadline_exceeded", {
    request_timeout: "The time of a request is over. | Ask for more.",
    backend_timeout: "A backend took too long. | Read the log; see `sandboxes.createTimeout`.",
  }),
  ...of("not_found", {
    route_not_found: "Nothing is served at this path. | Check the path and the listener.",
    sandbox_not_found: "No sandbox of the tenant has this id any more. | Create one.",
    sandbox_paused: "A paused sandbox cannot do this. | Resume it.",
    backend_not_found: "No plugin has a backend of this name. | See `sandboxes.templates`.",
    template_not_found: "No template has this name. | See `sandboxes.templates`.",
    template_tag_not_found: "The template has no such tag. | Leave the tag out.",
    build_not_found: "The template has no such build. | Use the id that the request returned.",
    run_not_found: "There is no such one-shot run. | Results are kept for `commands-v1.runsKept`.",
    image_not_found: "The backend has no image with this id. | Build the template again.",
    snapshot_not_found: "No snapshot of the tenant has this id. | List the snapshots.",
    volume_not_found: "No volume of the tenant has this id. | List the volumes.",
    process_not_found: "No process has this pid or tag, or it has ended. | List the processes.",
    process_log_not_found: "No log of such a command is kept. | See `commands.log`.",
    account_not_found: "The sandbox has no such user. | Use one of its `/etc/passwd`.",
    path_not_found: "There is no such file or directory. | List its parent.",
    watcher_not_found: "There is no such watch. | Watch again.",
    context_not_found: "There is no such context of code. | List the contexts.",
    kernel_not_found: "There is no such kernel. | List the kernels.",
    kernel_spec_not_found: "No kernel has this name. | List the kernel specs.",
    session_not_found: "There is no such Jupyter session. | List the sessions.",
    webhook_not_found: "The tenant has no such webhook. | List the webhooks.",
    delivery_not_found: "The webhook has no such delivery that is done. | List the deliveries.",
    key_not_found: "No API key with this id is in use. | `coppice keys list`.",
    path_reserved: "The path is the control plane's alone. | Do not call it.",
  }),
  ...of("already_exists", {
    backend_exists: "Two backends have one name. | Rename one.",
    sandbox_exists: "The id of a sandbox is taken. | Leave the id to the server.",
    sandbox_name_taken: "A sandbox of yours has the name. | Choose another name.",
    snapshot_name_taken: "A template has the name of a snapshot. | Choose another name.",
    template_name_taken: "A snapshot or an id has the name of a template. | Choose another name.",
    volume_exists: "A volume has this name. | Choose another name.",
    dataset_exists: "A ZFS dataset has this name. | Read the log.",
    path_exists: "A file or directory is there already. | Remove it, or choose another path.",
    key_exists: "An API key has this name. | Choose another name.",
    message_id_in_use: "A Jupyter message has this `msg_id`. | Choose another.",
    idempotency_key_reused: "The key was used for another request. | Use a new key.",
    idempotent_sandbox_ended: "The sandbox made with this key has ended. | Use a new key.",
    address_leased: "Another network leases this address. | Read the log.",
  }),
  ...of("permission_denied", {
    scope_missing: "The credential lacks a scope. | Use a key with the scope that the message names.",
    host_not_allowed: "A listener on loopback does not know the host. | See `http.allowedHosts`.",
    origin_not_allowed:
      "A web page from elsewhere. | See `http.allowedOrigins`, `legacy-shims.allowedOrigins`.",
    debug_sandbox_remote: "The debug sandbox serves this machine alone. | Make a sandbox.",
    traffic_token_invalid: "The traffic token is missing or wrong. | Send `e2b-traffic-access-token`.",
    template_read_only: "The server's configuration has the template. | Choose another name.",
    template_not_owned: "The template belongs to another tenant. | Build one of your own.",
    path_not_permitted: "The user may not do this with the file. | Be another user, or change its mode.",
    spawn_not_permitted: "The user may not start a command here. | Choose another `cwd` or user.",
    signal_not_permitted: "The process belongs to another user. | Be that user.",
    dataset_not_owned: "A ZFS dataset is not Coppice's. | See `jail-freebsd.dataset`.",
  }),
  ...of("resource_exhausted", {
    rate_limited: "Too many requests. | Wait for `Retry-After`; see `access.rateLimits`.",
    quota_reached: "A quota of the tenant is used up. | End sandboxes; see `access.quotas`.",
    sandbox_limit_reached: "The server has as many sandboxes as it may. | See `sandboxes.maximum`.",
    snapshot_limit_reached: "As many snapshots as there may be. | See `sandboxes.maximumSnapshots`.",
    volume_limit_reached: "As many volumes as there may be. | See `sandboxes.maximumVolumes`.",
    template_limit_reached: "As many templates as a tenant may have. | Delete one; see `templates`.",
    template_storage_full: "The templates of a tenant take all their space. | Delete some; see `templates`.",
    build_limit_reached: "As many builds as a tenant may have at one time. | Wait for one to end.",
    push_limit_reached: "As many pushes as a tenant may have at one time. | Wait for one to end.",
    upload_storage_full: "The uploads of a tenant take all their space. | See `templates.maxUploads`.",
    webhook_limit_reached: "As many webhooks as a tenant may have. | See `events.webhooks`.",
    command_limit_reached: "The sandbox runs as many commands as it may. | See `commands`.",
    execution_limit_reached: "Too many executions run or wait. | See `jupyter`, `legacy-shims`.",
    socket_limit_reached: "Too many WebSockets are open. | See `maxSockets` of the plugin.",
    exchange_limit_reached: "Too many requests to the sandbox's ports. | See `http`.",
    context_limit_reached: "The sandbox has as many contexts as it may. | Remove one; see `jupyter`.",
    session_limit_reached: "The sandbox has as many sessions as it may. | Close one; see `jupyter`.",
    kernel_client_limit_reached: "The kernel has as many clients as it may. | Close one; see `jupyter`.",
    watch_limit_reached: "Too many directories are watched. | Watch less; see `files`.",
    listing_limit_reached: "The listing would be too long. | List fewer levels.",
    events_lost: "Events of files came faster than they were read. | List, and watch again.",
    disk_full: "No space or no inodes are left. | Remove files, or raise `diskMiB`.",
    file_too_large: "A file is larger than the file system takes. | Write less.",
    ports_exhausted: "No port is free for a kernel. | See `jupyter`.",
    addresses_exhausted: "No network address is free. | End sandboxes, or enlarge the range.",
    image_too_large: "An image has more bytes or files than allowed. | Use a smaller one.",
    ids_exhausted: "No user or project id is free. | See `linux-namespaces.ids`.",
    host_resources_exhausted: "The host lacks memory, processes or descriptors. | Raise its limits.",
  }),
  ...of("failed_precondition", {
    archive_failed: "tar failed in the sandbox. | Read the message.",
    backend_missing: "The server has no backend. | Enable one; see `sandboxes.defaultBackend`.",
    host_unusable: "A backend cannot use this host. | `coppice doctor`.",
    agent_not_built: "The agent has not been built. | Install a C compiler, and run set-up.",
    internet_not_closable: "The backend cannot close the internet to a sandbox. | Use another backend.",
    pausing_unsupported: "The backend cannot pause in this way. | See `memory`, or use another backend.",
    resizing_unsupported: "The backend cannot resize. | Use another backend.",
    snapshots_unsupported: "The backend has no snapshots. | Use another backend.",
    volumes_unsupported: "The backend has no volumes. | Use another backend.",
    volume_owner_unsupported: "The backend cannot change owners and modes. | Leave them out.",
    template_building_unsupported: "Templates are not built by API. | See `sandboxes.templates`.",
    template_push_unsupported: "No image can be made of the template or snapshot. | Build a template.",
    image_not_pushed: "An image was not pushed to its registry. | Do what the message says.",
    template_in_use: "Sandboxes of the template exist. | End them first.",
    build_not_waiting: "A build was started before, or has ended. | Request a new one.",
    template_unusable: "A template cannot be made or built. | Read the log of the server.",
    template_not_signed: "A template's signature is missing or wrong. | Sign the template.",
    templates_busy: "Another process builds or removes templates. | Wait for it.",
    template_without_limit: "A quota counts what the template does not limit. | Give it a limit.",
    image_too_deep: "An image would stand on too many others. | Build it in fewer steps.",
    snapshot_too_deep: "The sandbox has too many snapshots below it. | Make one of the template.",
    limits_below_use: "The sandbox uses more than the new limit. | Free memory or disk first.",
    account_missing: "The template lacks a user. | Add the user to the template.",
    stdin_closed: "The command has no open stdin. | Start it with `stdin: true`.",
    stdin_not_closable: "The input of a terminal cannot be closed. | Send Ctrl-D.",
    terminal_missing: "The command has no terminal. | Start it with one.",
    terminal_unavailable: "No terminal can be had here. | Read the message.",
    port_closed: "Nothing listens on the port in the sandbox. | Start the program first.",
    file_closed: "A file was used after its end. | Open it again.",
    symlink_loop: "A symbolic link leads to itself. | Correct the link.",
    directory_not_empty: "A directory is not empty. | Remove what is in it.",
    path_busy: "The path is in use. | End what uses it.",
    cross_device_link: "Source and destination are on two file systems. | Copy instead.",
    kernel_start_failed: "A kernel did not start, or ended while it did. | Read the message and the log.",
    kernel_stuck: "A kernel goes on with a cell that was given up. | Restart the context.",
    file_changed: "The file is not the one that was asked for. | Read it anew.",
  }),
  ...of("aborted", {
    sandbox_being_killed: "The sandbox is being ended. | Create another.",
    sandbox_transitioning: "The sandbox is being paused, resumed or snapshotted. | Try again.",
    sandbox_state_conflict: "The state of the sandbox does not allow this. | Look at its `state`.",
    sandbox_ended_meanwhile: "The sandbox ended during the request. | Create another.",
    server_stopped: "The server stopped during the request. | Try again.",
    context_removed: "The context was removed during the request. | Use another.",
    process_ended: "The process ended during the request. | Nothing.",
    connection_lost: "The program in the sandbox closed the connection. | Connect again.",
  }),
  ...of("out_of_range", {
    range_not_satisfiable: "No byte of the range is in the file. | See `Content-Range`.",
  }),
  ...of("unimplemented", {
    template_has_no_kernel: "The template has no kernel of the language. | See `docs/compatibility.md`.",
    watching_unsupported: "The backend cannot watch directories. | List them.",
    freezer_missing: "The host cannot freeze processes. | `coppice doctor`.",
    method_not_allowed: "The path takes other methods. | See `Allow`.",
    upgrade_required: "The path is a WebSocket. | Ask for an upgrade, and let proxies pass it on.",
  }),
  ...of("internal", {
    start_command_failed: "The start command of a template failed. | Read the message; build it anew.",
    internal_error: "A bug in Coppice, or an unforeseen failure of the host. | Read the log; report it.",
    file_operation_failed: "The sandbox's kernel failed an operation unexpectedly. | Read the message.",
    watch_failed: "A watch broke off. | Watch again.",
  }),
  ...of("unavailable", {
    server_stopping: "The server is stopping. | Try again when it is back.",
    server_busy: "Too many requests wait for the same thing. | Try again.",
    fleet_fenced: "This server has lost contact with its fleet. | Try again; look at its log and at etcd.",
    template_not_fetched: "The template of another server could not be fetched. | Retry; see its registry.",
    fleet_unavailable: "The fleet cannot do it now. | Try again; look at etcd and at the other servers.",
    store_unavailable: "The server cannot write to its disk. | Free space; look at `/readyz`.",
    log_unavailable: "Output of commands is not logged. | Read the message; see `commands.log`.",
    identity_provider_unavailable: "Keys for tokens cannot be fetched. | See `access.jwt`.",
    sandbox_ended: "The sandbox has ended. | Create another.",
    sandbox_lost: "The sandbox ended on its own. | Raise its limits; read the message.",
    sandbox_stopped: "The sandbox is stopped. | Resume it.",
    sandbox_not_running: "The sandbox is not running yet, or no more. | Try again, or create another.",
    sandbox_setup_failed: "A new sandbox could not be prepared. | Read the message.",
    sandbox_not_ready: "The readiness probe did not succeed in time. | Correct template or probe.",
    sandbox_not_enterable: "The sandbox could not be entered. | Read the log.",
    destruction_pending: "Something could not be removed yet; the server keeps trying. | Read the log.",
    pause_failed: "The sandbox could not be paused. | Try again; read the log.",
    resume_failed: "The sandbox could not be resumed. | Try again; read the log.",
    snapshot_failed: "The snapshot could not be taken. | Try again; read the log.",
    volume_failed: "The volume could not be made. | Try again; read the log.",
    volume_closed: "The volume was closed during the request. | Try again.",
    agent_unavailable: "The agent did not start, or its connection broke. | Read the log.",
    launcher_unavailable: "The launcher of linux-namespaces has ended. | Read the log.",
    directory_in_use: "Another server uses the directory. | Give each server its own.",
    egress_range_in_use: "Another program uses the `egressRange`. | Choose another range.",
    path_unstable: "The path keeps changing while it is used. | Try again.",
  }),
  ...of("data_loss", { file_shrank: "A file shrank while it was read. | Read it again." }),
  ...of("unauthenticated", {
    credential_missing: "No API key and no token. | Send `X-API-Key` or `Authorization`.",
    credential_invalid: "The API key or token is wrong, expired or revoked. | Make a new one.",
    access_token_invalid: "The sandbox's access token is missing or wrong. | Send `X-Access-Token`.",
    signature_invalid: "The signature of a file URL is missing or wrong. | Sign the URL again.",
    signature_expired: "The signature of a file URL has expired. | Sign the URL again.",
    download_link_invalid: "A download link is wrong. | Make a new one.",
    download_link_expired: "A download link has expired. | Make a new one.",
    volume_token_invalid: "There is no such volume, or the token is not its own. | Use its token.",
    fleet_peer_unknown:
      "Only other servers of the fleet are served here. | Compare `fleet.secret` on all of them.",
    user_unknown: "The sandbox has no user of this name. | Use one of its `/etc/passwd`.",
  }),
} as const;

export type Reason = keyof typeof REASONS;

/** Reason of a plugin outside of this repository, in its own name: `{ reason: "acme.no_licence", code: "unavailable" }`. */
export interface PluginReason {
  readonly reason: `${string}.${string}`;
  readonly code: ErrorCode;
}
