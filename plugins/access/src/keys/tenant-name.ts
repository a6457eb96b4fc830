/**
 * A tenant of keys and of JWTs with an organization. A personal tenant of a JWT contains a colon, so the two never
 * collide.
 */
export const TENANT_NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/;
