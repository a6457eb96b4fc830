/**
 * Primary result code of an SQLite error, whose upper bits refine it; undefined for any other error.
 * Source: https://www.sqlite.org/rescode.html
 */
export function sqliteErrorCode(error: unknown): number | undefined {
  if (!(error instanceof Error)) return undefined;
  const { code, errcode } = error as { readonly code?: unknown; readonly errcode?: number };
  return code === "ERR_SQLITE_ERROR" && errcode !== undefined ? errcode % 256 : undefined;
}
