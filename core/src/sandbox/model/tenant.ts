/** Owns what is made without a tenant: on a server that asks nobody who they are, by the server itself, and before tenants. */
export const DEFAULT_TENANT = "default";
