/** A tenant of keys and of JWTs with an organization. What a JWT alone stands for has a colon, so the two never meet. */
export const TENANT_NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/;
