import { type ShellRoute, success } from "./route.js";

/** Version of the client that the interface is that of: clients warn of another one. */
const VERSION = "0.12.10";

export const utilityRoutes: readonly ShellRoute[] = [
  {
    method: "GET",
    path: "/",
    handle: () => Promise.resolve({ text: "The shell sessions of a sandbox: see /api/version\n" }),
  },
  {
    method: "GET",
    path: "/api/ping",
    // Clients read `message`.
    handle: () => Promise.resolve(success({ status: "healthy", message: "healthy" })),
  },
  {
    method: "GET",
    path: "/api/version",
    handle: () => Promise.resolve(success({ version: VERSION })),
  },
];
