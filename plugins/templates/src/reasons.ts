import { declareReasons } from "@coppice/core";

/** Reasons of the refusals of this plugin. A released name keeps its meaning and its code. */
export const REASONS = declareReasons(
  {
    invalid_argument: {
      template_build_invalid: "A build of a template is asked for wrongly. | Correct what the message names.",
      template_limits_invalid: "A template asks for too much or for odd limits. | See `templates`.",
      image_target_invalid: "An image cannot be pushed to a place of that name. | Correct the reference.",
      upload_length_missing: "An upload has no `Content-Length`. | Send one.",
    },
    not_found: { build_not_found: "The template has no such build. | Use the id that the request returned." },
    already_exists: {
      template_name_taken: "A snapshot or an id has the name of a template. | Choose another name.",
    },
    permission_denied: {
      template_read_only: "The server's configuration has the template. | Choose another name.",
      template_not_owned: "The template belongs to another tenant. | Build one of your own.",
    },
    resource_exhausted: {
      template_limit_reached: "As many templates as a tenant may have. | Delete one; see `templates`.",
      template_storage_full:
        "The templates of a tenant take all their space. | Delete some; see `templates`.",
      build_limit_reached: "As many builds as a tenant may have at one time. | Wait for one to end.",
      push_limit_reached: "As many pushes as a tenant may have at one time. | Wait for one to end.",
      upload_storage_full: "The uploads of a tenant take all their space. | See `templates.maxUploads`.",
    },
    failed_precondition: {
      template_building_unsupported: "Templates are not built by API. | See `sandboxes.templates`.",
      image_not_pushed: "An image was not pushed to its registry. | Do what the message says.",
      template_in_use: "Sandboxes of the template exist. | End them first.",
      build_not_waiting: "A build was started before, or has ended. | Request a new one.",
    },
    internal: {
      start_command_failed: "The start command of a template failed. | Read the message; build it anew.",
    },
    unavailable: {
      template_not_ready:
        "The server has not built a template of its own yet. | Read the message; try again.",
      template_not_fetched: "The template of another server could not be fetched. | Retry; see its registry.",
    },
  },
  { build_not_found: 400, upload_length_missing: 411 },
);
