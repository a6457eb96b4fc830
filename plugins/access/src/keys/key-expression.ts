/**
 * What a shell puts into E2B_API_KEY. No key itself: whatever a server prints may be kept in a log.
 * @param keyFile of the development key.
 */
export function keyExpression(keyFile: string | undefined): string {
  if (keyFile === undefined) return "<one of plugins.access, or of coppice keys create>";
  return `"$(cat '${keyFile.replaceAll("'", "'\\''")}')"`;
}
