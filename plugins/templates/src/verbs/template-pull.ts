import { parseArgs } from "node:util";
import { SandboxError, type VerbAction } from "@coppice/core";
import { BUILD_OPTIONS, BUILD_USAGE, requestOf } from "../client/build-options.js";
import { ACCOUNT, ACCOUNT_USAGE, accountOf } from "../client/registry-account.js";
import { runBuild } from "../client/run-build.js";
import type { TemplatesConfig } from "../templates-config.js";

/**
 * Makes a template of an image, on a running server. One that was pushed has its configuration again, and its limits
 * unless the command line names some.
 */
export const templatePull: VerbAction<TemplatesConfig> = {
  usage: `<name[:tag]> <image> ${ACCOUNT_USAGE} ${BUILD_USAGE}`,
  async run(context) {
    const { values, positionals } = parseArgs({
      args: [...context.args],
      allowPositionals: true,
      options: { ...BUILD_OPTIONS, ...ACCOUNT },
    });
    const [name, image, ...others] = positionals;
    if (name === undefined || image === undefined || others.length > 0)
      throw new SandboxError("usage_invalid", "name a template and an image");
    const account = await accountOf(values);
    const request = requestOf(name, values);
    const hasLimits = values["cpu-count"] !== undefined || values["memory-mb"] !== undefined;
    return runBuild(context.server(values), context, {
      request,
      prepare: async () => ({
        fromImage: image,
        ...(account && { fromImageRegistry: account }),
        force: values["no-cache"],
        restore: { limits: !hasLimits },
      }),
    });
  },
};
