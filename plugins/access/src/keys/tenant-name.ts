/** A tenant of keys and organizations. A JWT's personal tenant has a colon, so the two never collide. */
export const TENANT_NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/;
