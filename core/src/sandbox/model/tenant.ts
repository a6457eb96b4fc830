/**
 * Tenant of sandboxes without one: those of the server itself, of a server without authentication, and from before
 * tenants.
 */
export const DEFAULT_TENANT = "default";
