import { z } from "zod";

export const envdCompatConfig = z.strictObject({
  debugSandbox: z
    .boolean()
    .default(false)
    .describe("Serve one shared, open sandbox on the loopback listeners envd and code, for E2B_DEBUG=true."),
  debugTemplate: z.string().default("code-interpreter-v1").describe("Template of the debug sandbox."),
});
