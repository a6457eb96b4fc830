/**
 * The account in `Authorization: Basic base64("<user>:")`; undefined for an absent header, another scheme, or an empty
 * name.
 */
export function basicUser(authorization: string | null | undefined): string | undefined {
  const encoded = /^basic\s+([A-Za-z0-9+/_=-]+)\s*$/i.exec(authorization ?? "")?.[1];
  if (encoded === undefined) return undefined;
  const credentials = Buffer.from(encoded, "base64").toString("utf8");
  const separator = credentials.indexOf(":");
  return (separator < 0 ? credentials : credentials.slice(0, separator)) || undefined;
}
