import { hash } from "node:crypto";

const NAMESPACE = /^[a-z0-9-_]{1,63}$/;

/** The namespace of a tenant's templates, in the names that other tenants use: the tenant itself where it can be one. */
export function namespaceOf(tenant: string): string {
  if (NAMESPACE.test(tenant)) return tenant;
  const readable = tenant
    .toLowerCase()
    .replaceAll(/[^a-z0-9-_]+/g, "-")
    .slice(0, 40);
  return `${readable}-${hash("sha256", tenant, "hex").slice(0, 16)}`;
}
