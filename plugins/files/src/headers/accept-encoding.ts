export type Coding = "gzip" | "identity";

/**
 * Picks the content coding of an answer: the acceptable one with the highest q-value, the first listed of equals. `*`
 * stands for identity first. Undefined: the client accepts none of those offered.
 */
export function chooseCoding(header: string | undefined, offered: readonly Coding[]): Coding | undefined {
  const preferences = parse(header ?? "").sort((a, b) => b.quality - a.quality);
  const refused = new Set(preferences.filter(({ quality }) => quality === 0).map(({ coding }) => coding));
  for (const { coding, quality } of preferences) {
    if (quality === 0) break;
    const found =
      coding === "*"
        ? (["identity", "gzip"] as const).find((each) => offered.includes(each) && !refused.has(each))
        : offered.find((each) => each === coding);
    if (found !== undefined) return found;
  }
  // Identity is acceptable unless it is refused.
  const isIdentityRefused = refused.has("identity") || refused.has("*");
  return offered.includes("identity") && !isIdentityRefused ? "identity" : undefined;
}

function parse(header: string): { readonly coding: string; readonly quality: number }[] {
  return header
    .split(",")
    .map((element) => {
      const [coding = "", ...parameters] = element.split(";").map((text) => text.trim().toLowerCase());
      const quality = Number(parameters.find((text) => text.startsWith("q="))?.slice(2) ?? 1);
      return { coding, quality: quality >= 0 && quality <= 1 ? quality : 1 };
    })
    .filter(({ coding }) => coding !== "");
}
