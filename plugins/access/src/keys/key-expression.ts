/**
 * Shell expression for E2B_API_KEY, without the key itself: printed text may end up in a log. @param keyFile of the
 * development key.
 */
export function keyExpression(keyFile: string | undefined): string {
  if (keyFile === undefined) return "<one of plugins.access, or of coppice keys create>";
  return `"$(cat '${keyFile.replaceAll("'", "'\\''")}')"`;
}
