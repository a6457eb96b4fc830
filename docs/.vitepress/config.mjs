// The site of the documentation, which `npm run docs` builds from the pages that scripts/docs-site.mjs puts together.
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";

/** Pages by task, in the order of the sidebar. A page that is named nowhere stands in the last group. */
const GROUPS = {
  Start: ["install", "first-sandbox", "from-e2b", "from-daytona", "faq"],
  Use: [
    "command-line",
    "templates",
    "editors",
    "commands-v1",
    "shell-sessions",
    "compatibility",
    "troubleshooting",
  ],
  Operate: [
    "operating",
    "runbook",
    "linux",
    "freebsd",
    "fleet",
    "three-hosts",
    "sizing",
    "limits",
    "security",
    "measurements",
  ],
  Extend: ["writing-a-plugin", "writing-a-backend", "agent-protocol", "map"],
  Reference: ["reference", "settings", "errors", "api-core", "api-core-testing", "api-conformance"],
  Decisions: /^docs\/adr\//,
  Project: /./,
};

/** The heading of a page. */
export function titleOf(text) {
  return (/^# (.+)$/m.exec(text)?.[1] ?? "").replace(/`/g, "");
}

/** Pages of the folder in the groups of the sidebar. @returns pairs of a group and its pages, as `docs/install.md`. */
export function groupsOf(folder) {
  const left = new Set(
    readdirSync(folder, { recursive: true })
      .map((name) => name.replaceAll("\\", "/"))
      .filter(
        (name) => name.endsWith(".md") && name !== "index.md" && !/^(?:public|\.vitepress)\//.test(name),
      )
      .sort(
        (one, other) => Number(/README/.test(other)) - Number(/README/.test(one)) || (one < other ? -1 : 1),
      ),
  );
  return Object.entries(GROUPS).map(([group, members]) => {
    const pages = Array.isArray(members)
      ? members.map((name) => `docs/${name}.md`).filter((page) => left.has(page))
      : [...left].filter((page) => members.test(page));
    for (const page of pages) left.delete(page);
    return [group, pages];
  });
}

/** A browser loads nothing from elsewhere, whatever a page or the theme names. */
const POLICY =
  "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:";

/** The configuration of VitePress for a folder of pages. */
export function siteOf(folder) {
  const sidebar = groupsOf(folder).map(([text, pages]) => ({
    text,
    collapsed: text === "Decisions",
    items: pages.map((page) => ({
      text: titleOf(readFileSync(join(folder, page), "utf8")),
      link: `/${page.replace(/\.md$/, "")}`,
    })),
  }));
  return {
    title: "Coppice",
    description: "A self-hosted sandbox server for AI agents that answers the unmodified E2B SDKs.",
    outDir: "../html",
    srcExclude: ["public/**"],
    // docs-site.mjs finds these and more.
    ignoreDeadLinks: true,
    head: [["meta", { "http-equiv": "Content-Security-Policy", "content": POLICY }]],
    transformHead: ({ page }) => [["link", { rel: "alternate", type: "text/markdown", href: `/${page}` }]],
    // A page has no HTML, so `<id>` in its text is text. Anchors are as code hosts write them, so that a link works in both places.
    markdown: {
      html: false,
      anchor: {
        slugify: (text) =>
          text
            .toLowerCase()
            .replace(/[^\p{L}\p{N}\s_-]/gu, "")
            .replace(/\s/g, "-"),
      },
    },
    themeConfig: { sidebar, search: { provider: "local" }, outline: [2, 3] },
    vite: { build: { chunkSizeWarningLimit: 4096 } },
  };
}
