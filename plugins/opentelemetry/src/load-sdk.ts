import { createRequire } from "node:module";
import { join } from "node:path";
import { SandboxError } from "@coppice/core";
import { REASONS } from "./reasons.js";
import type { OpentelemetryConfig } from "./opentelemetry-config.js";

const NAMES = [
  "@opentelemetry/api",
  "@opentelemetry/core",
  "@opentelemetry/resources",
  "@opentelemetry/sdk-trace",
  "@opentelemetry/exporter-trace-otlp-http",
] as const;

/** The packages of OpenTelemetry that spans are made with. */
export interface Sdk {
  readonly api: typeof import("@opentelemetry/api");
  readonly core: typeof import("@opentelemetry/core");
  readonly resources: typeof import("@opentelemetry/resources");
  readonly trace: typeof import("@opentelemetry/sdk-trace");
  readonly exporter: typeof import("@opentelemetry/exporter-trace-otlp-http");
}

/**
 * Loads the packages that the operator has installed: they are no part of the server.
 * @throws SandboxError opentelemetry_missing with the command that installs them.
 */
export function loadSdk({ modules }: Pick<OpentelemetryConfig, "modules">): Sdk {
  const require = createRequire(modules === undefined ? import.meta.url : join(modules, "package.json"));
  try {
    const [api, core, resources, trace, exporter] = NAMES.map((name): unknown => require(name));
    return { api, core, resources, trace, exporter } as Sdk;
  } catch (cause) {
    const install = `npm install ${modules === undefined ? "" : `--prefix ${modules} `}${NAMES.join(" ")}`;
    throw new SandboxError(
      REASONS.opentelemetry_missing,
      `the packages of OpenTelemetry are missing: ${install}`,
      {
        cause,
      },
    );
  }
}
