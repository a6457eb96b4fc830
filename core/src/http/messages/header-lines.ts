/** The lines of a head, each with its end. @param headers names and values in turn. */
export function headerLines(headers: readonly string[]): string {
  let lines = "";
  for (let index = 0; index < headers.length; index += 2)
    lines += `${headers[index]}: ${headers[index + 1]}\r\n`;
  return lines;
}
