import { API_KEY } from "./api-key.js";

/** Sets what a user of the SDKs sets to reach a server: one URL for everything. node:test gives each file its own process. */
export function pointSdkAt(url: string): void {
  process.env["E2B_API_URL"] = url;
  process.env["E2B_SANDBOX_URL"] = url;
  process.env["E2B_API_KEY"] = API_KEY;
}
