/** A table in Markdown, as the formatter writes it. */
export function markdownTable(head, rows) {
  const table = [head, [], ...rows];
  const widths = head.map((_, column) => Math.max(...table.map((row) => (row[column] ?? "").length)));
  const lines = table.map((row) => {
    const cells = widths.map((width, column) => row[column]?.padEnd(width) ?? "-".repeat(width));
    return `| ${cells.join(" | ")} |\n`;
  });
  return lines.join("");
}
