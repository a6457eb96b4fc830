import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { cp, mkdir, mkdtemp, readFile, readdir, rm, symlink, writeFile } from "node:fs/promises";
import { builtinModules } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join, relative } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));

/** A file that would cross a boundary (or would not), planted in an empty copy of the tree. */
interface Plant {
  readonly path: string;
  readonly imports: string;
}

const REFUSED: readonly Plant[] = [
  { path: "core/src/kernel/planted-up.ts", imports: "../sandbox/sandboxes.js" },
  { path: "core/src/kernel/planted-plugin.ts", imports: "@coppice/plugin-commands" },
  { path: "core/src/kernel/planted-package.ts", imports: "koa" },
  { path: "core/src/kernel/planted-tsyringe.ts", imports: "tsyringe" },
  { path: "core/src/planted-tsyringe.ts", imports: "tsyringe" },
  { path: "core/src/http/planted-plugin.ts", imports: "@coppice/plugin-files" },
  { path: "core/src/sandbox/planted-child.ts", imports: "node:child_process" },
  { path: "core/src/sandbox/planted-zeromq.ts", imports: "zeromq" },
  { path: "plugins/commands/src/planted-tsyringe.ts", imports: "tsyringe" },
  { path: "plugins/commands/src/planted-child.ts", imports: "node:child_process" },
  { path: "plugins/commands/src/planted-bare-child.ts", imports: "child_process" },
  { path: "plugins/commands/src/planted-dist.ts", imports: "@coppice/core/dist/boot/boot.js" },
  { path: "plugins/commands/src/planted-other-entry.ts", imports: "@coppice/core/kernel" },
  { path: "plugins/commands/src/planted-testing.ts", imports: "@coppice/core/testing" },
  { path: "plugins/commands/src/planted-cases.ts", imports: "@coppice/conformance" },
  {
    path: "plugins/commands/src/planted-plugin-inside.ts",
    imports: "@coppice/plugin-files/dist/watchers.js",
  },
  { path: "plugins/commands/src/planted-outside.ts", imports: "../../files/src/index.js" },
  { path: "plugins/commands/src/planted-core.ts", imports: "../../../core/src/boot.js" },
  { path: "plugins/commands/src/wire/planted-outside.ts", imports: "../../../files/src/index.js" },
  { path: "plugins/commands/src/planted-outside.test.ts", imports: "../../files/src/index.js" },
  { path: "plugins/jupyter/src/planted-zeromq.ts", imports: "zeromq" },
  { path: "plugins/files/src/planted-chokidar.ts", imports: "chokidar" },
  { path: "plugins/local-process/src/planted-child.ts", imports: "node:child_process" },
  { path: "test/src/planted-dist.ts", imports: "@coppice/core/dist/boot/boot.js" },
  { path: "bench/src/planted-dist.ts", imports: "@coppice/core/dist/boot/boot.js" },
];

const ALLOWED: readonly Plant[] = [
  { path: "core/src/kernel/scope.ts", imports: "tsyringe" },
  { path: "core/src/kernel/planted-sibling.ts", imports: "./token.js" },
  { path: "core/src/kernel/planted-node.ts", imports: "node:path" },
  { path: "core/src/kernel/planted-node-part.ts", imports: "node:fs/promises" },
  { path: "core/src/http/planted-kernel.ts", imports: "../kernel/token.js" },
  { path: "plugins/commands/src/planted-entry.ts", imports: "@coppice/core/backend" },
  { path: "plugins/commands/src/planted-plugin.ts", imports: "@coppice/plugin-files" },
  { path: "plugins/commands/src/wire/planted-own.ts", imports: "../commands.js" },
  { path: "plugins/commands/src/planted-testing.test.ts", imports: "@coppice/core/testing" },
  { path: "plugins/commands/src/planted-cases.test.ts", imports: "@coppice/conformance" },
  { path: "plugins/commands/src/testing/planted-kit.ts", imports: "@coppice/core/testing" },
  { path: "plugins/jupyter/src/transport/zeromq-channels.ts", imports: "zeromq" },
  { path: "plugins/files/src/watch/host-watch.ts", imports: "chokidar" },
  { path: "plugins/local-process/src/processes/host-processes.ts", imports: "node:child_process" },
  { path: "test/src/planted-entry.ts", imports: "@coppice/core/testing" },
];

/** Rules that the project's linter reports as broken, by path. */
async function lint(
  folder: string,
  parameters: readonly string[] = [],
): Promise<(path: string) => readonly string[]> {
  const linter = join(ROOT, "node_modules", "oxlint", "bin", "oxlint");
  const run = await promisify(execFile)(process.execPath, [linter, "--format=json", ...parameters], {
    cwd: folder,
    maxBuffer: 16 * 1024 * 1024,
  }).catch((error: { readonly stdout: string }) => error);
  const { diagnostics } = JSON.parse(run.stdout) as {
    readonly diagnostics: readonly { readonly filename: string; readonly code: string }[];
  };
  return (path) => diagnostics.filter(({ filename }) => filename === path).map(({ code }) => code);
}

async function plant(folder: string, path: string, content: string): Promise<void> {
  await mkdir(dirname(join(folder, path)), { recursive: true });
  await writeFile(join(folder, path), content);
}

describe("the linter's import boundaries", () => {
  let folder: string;
  let findings: (path: string) => readonly string[];

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), "coppice-boundaries-"));
    await cp(join(ROOT, ".oxlintrc.json"), join(folder, ".oxlintrc.json"));
    for (const { path, imports } of [...REFUSED, ...ALLOWED]) {
      await plant(folder, path, `import * as planted from "${imports}";\nexport const kept = planted;\n`);
    }
    findings = await lint(folder);
  });

  after(() => rm(folder, { recursive: true, force: true }));

  for (const { path, imports } of REFUSED) {
    it(`refuse ${imports} in ${path}`, () => {
      assert.ok(findings(path).includes("eslint(no-restricted-imports)"));
    });
  }

  for (const { path, imports } of ALLOWED) {
    it(`allow ${imports} in ${path}`, () => {
      assert.deepEqual(findings(path), []);
    });
  }
});

/** Folders whose rooms import only rooms that stand before them. */
const ROOMS: Readonly<Record<string, readonly string[]>> = {
  "agent/src": ["built", "wire", "handover", "files"],
  "core/src": ["kernel", "bounds", "sqlite", "observe", "config", "sandbox", "http", "plugin", "boot", "cli"],
  "core/src/http": ["messages", "clients", "surfaces", "creations", "peers", "targeting", "proxy"],
  "core/src/sandbox": [
    "contract",
    "model",
    "backends",
    "ledger",
    "templates",
    "warm",
    "volumes",
    "life",
    "snapshots",
  ],
  "cli/src": ["connection", "verbs"],
  "conformance/src": ["kit", "cases"],
  "plugins/access/src": ["keys", "audit"],
  "plugins/commands/src": ["contract", "output-log", "table", "rpc", "http"],
  "plugins/commands-v1/src": ["store", "sandboxes", "commands", "logs", "terminals", "runs", "archives"],
  "plugins/shell-sessions/src": [
    "shell",
    "processes",
    "wire",
    "files",
    "ports",
    "code",
    "git",
    "watch",
    "socket",
  ],
  "plugins/events/src": ["store", "webhooks"],
  "plugins/fleet/src": [
    "trust",
    "store",
    "membership",
    "records",
    "placement",
    "routing",
    "observe",
    "verbs",
  ],
  "plugins/files/src": ["watch", "service", "headers", "http", "rpc"],
  "plugins/jail-freebsd/src": ["host", "jails", "zfs", "network"],
  "plugins/jupyter/src": ["json", "transport", "programs", "kernel", "contexts", "e2b", "server"],
  "plugins/linux-namespaces/src": ["launcher", "limits", "templates", "storage", "network"],
  "plugins/local-process/src": ["files", "processes", "directories"],
  "plugins/sandbox-api/src": ["volumes", "bodies", "sandboxes", "snapshots"],
  "plugins/templates/src": [
    "model",
    "store",
    "uploads",
    "images",
    "debian",
    "guest",
    "steps",
    "builds",
    "catalog",
    "queue",
    "sharing",
    "recipes",
    "startup",
    "api",
    "client",
    "verbs",
  ],
  "bench/src": ["kit", "report", "benchmarks", "rows", "soak", "fleet-faults"],
  "test/src/freebsd": ["host", "sandboxes", "faults"],
  "test/src/harness": ["host", "clients", "freebsd", "server"],
};

/** Folders of a folder that are no rooms: what tests and benchmarks alone use, and what is generated. */
const NO_ROOMS = ["testing", "generated", "bench"];
const MOST_FILES = 21;

describe("the rooms of a folder", () => {
  for (const [folder, rooms] of Object.entries(ROOMS)) {
    it(`of ${folder} are all named, and import one way`, async () => {
      const entries = await readdir(join(ROOT, folder), { withFileTypes: true });
      const found = entries.filter((entry) => entry.isDirectory()).map(({ name }) => name);
      assert.deepEqual(found.filter((name) => !NO_ROOMS.includes(name)).toSorted(), [...rooms].toSorted());
      for (const [index, room] of rooms.entries()) {
        for (const file of (await sourcesIn(folder)).filter((name) => name.startsWith(`${room}/`))) {
          const text = await readFile(join(ROOT, folder, file), "utf8");
          for (const [, path = ""] of text.matchAll(/ from "(\.[^"]+)"/g)) {
            const [other = "", ...below] = relative(".", join(dirname(file), path)).split("/");
            // Files at the top of the folder put the rooms together. Of these, rooms import only the configuration and the reasons.
            if (below.length === 0)
              assert.match(other, /-config\.js$|^reasons\.js$/, `${file} imports ${path}`);
            else if (other !== "..") assert.ok(rooms.indexOf(other) <= index, `${file} imports ${path}`);
          }
        }
      }
    });
  }

  it("are on the map", async () => {
    const map = await readFile(join(ROOT, "docs/map.md"), "utf8");
    const missing = Object.entries(ROOMS).flatMap(([folder, rooms]) =>
      rooms.filter((room) => !map.includes(`\`${room}\``)).map((room) => `${folder}/${room}`),
    );
    assert.deepEqual(missing, []);
  });

  it("hold no more files than can be read at a glance", async () => {
    const packages = [
      "agent",
      "bench",
      "cli",
      "conformance",
      "core",
      "test",
      ...(await readdir(join(ROOT, "plugins"))).map((name) => `plugins/${name}`),
    ];
    for (const name of packages) {
      const folders = (await sourcesIn(`${name}/src`)).map((file) => dirname(file));
      for (const folder of new Set(folders)) {
        const count = folders.filter((one) => one === folder).length;
        assert.ok(count <= MOST_FILES, `${name}/src/${folder} has ${count} files`);
      }
    }
  });
});

/** Sources below a folder, without tests, as paths from it. */
async function sourcesIn(folder: string): Promise<readonly string[]> {
  const files = await readdir(join(ROOT, folder), { recursive: true });
  return files.filter((name) => name.endsWith(".ts") && !name.endsWith(".test.ts"));
}

describe("the linter's house rules", () => {
  it("refuse what they name, also where that takes types", async (context) => {
    const folder = await mkdtemp(join(tmpdir(), "coppice-rules-"));
    context.after(() => rm(folder, { recursive: true, force: true }));
    await cp(join(ROOT, ".oxlintrc.json"), join(folder, ".oxlintrc.json"));
    // The linter looks here for its type-aware program.
    await symlink(join(ROOT, "node_modules"), join(folder, "node_modules"));
    await plant(folder, "tsconfig.json", '{ "compilerOptions": { "strict": true, "module": "nodenext" } }');
    const marker = ["TO", "DO"].join("");
    const plants: Readonly<Record<string, readonly [code: string, rule: string]>> = {
      "core/src/any.ts": ["export const value: any = 1;", "typescript(no-explicit-any)"],
      "core/src/camelCase.ts": ["export const value = 1;", "unicorn(filename-case)"],
      "core/src/floating.ts": [
        "async function run(): Promise<void> {}\nexport function start(): void {\n  run();\n}",
        "typescript(no-floating-promises)",
      ],
      "core/src/marker.ts": [`// ${marker}: later\nexport const value = 1;`, "eslint(no-warning-comments)"],
      "core/src/print.ts": ['console.log("x");\nexport {};', "eslint(no-console)"],
      "core/src/unused.ts": ["const value = 1;\nexport {};", "eslint(no-unused-vars)"],
    };
    for (const [path, [code]] of Object.entries(plants)) await plant(folder, path, `${code}\n`);
    const findings = await lint(folder, ["--type-aware", "core"]);
    for (const [path, [, rule]] of Object.entries(plants)) assert.deepEqual(findings(path), [rule], path);
  });
});

interface Package {
  readonly name: string;
  readonly folder: string;
  /** Packages that its published code may import. */
  readonly dependencies: ReadonlySet<string>;
  /** Packages that only its tests may import. */
  readonly developmentDependencies: ReadonlySet<string>;
}

async function packages(): Promise<readonly Package[]> {
  const folders = [
    "core",
    "cli",
    "conformance",
    ...(await readdir(join(ROOT, "plugins"))).map((name) => `plugins/${name}`),
    "test",
    "bench",
  ];
  return Promise.all(
    folders.map(async (folder) => {
      const manifest = JSON.parse(await readFile(join(ROOT, folder, "package.json"), "utf8")) as {
        readonly name: string;
        readonly dependencies?: Readonly<Record<string, string>>;
        readonly optionalDependencies?: Readonly<Record<string, string>>;
        readonly devDependencies?: Readonly<Record<string, string>>;
        readonly peerDependencies?: Readonly<Record<string, string>>;
      };
      return {
        name: manifest.name,
        folder,
        dependencies: new Set(
          Object.keys({
            ...manifest.dependencies,
            ...manifest.optionalDependencies,
            ...manifest.peerDependencies,
          }),
        ),
        developmentDependencies: new Set(Object.keys(manifest.devDependencies ?? {})),
      };
    }),
  );
}

/** Every module specifier in a package's source, dynamic imports included, with the file it stands in. */
async function importsOf(
  folder: string,
): Promise<readonly { readonly file: string; readonly specifier: string }[]> {
  const source = join(ROOT, folder, "src");
  const files = (await readdir(source, { recursive: true, withFileTypes: true })).filter(
    (entry) => entry.isFile() && entry.name.endsWith(".ts"),
  );
  const found = await Promise.all(
    files.map(async (entry) => {
      const path = join(entry.parentPath, entry.name);
      const text = await readFile(path, "utf8");
      const specifiers = text.matchAll(
        /^\s*(?:import|export|\})[^;"]*?\bfrom "([^"]+)"|\bimport\("([^"]+)"\)|^import "([^"]+)"|\.resolve\("([^"]+)"\)/gm,
      );
      return [...specifiers].map((match) => ({
        file: relative(ROOT, path),
        specifier: match[1] ?? match[2] ?? match[3] ?? match[4] ?? "",
      }));
    }),
  );
  return found.flat();
}

/** `@scope/name` or `name` of a bare specifier, undefined for a path or a part of Node. */
function packageOf(specifier: string): string | undefined {
  if (specifier.startsWith(".") || specifier.startsWith("node:") || builtinModules.includes(specifier))
    return undefined;
  return specifier.split("/", specifier.startsWith("@") ? 2 : 1).join("/");
}

describe("the packages of the project", () => {
  it("import only what their own package.json declares", async () => {
    const undeclared: string[] = [];
    for (const { name, folder, dependencies, developmentDependencies } of await packages()) {
      for (const { file, specifier } of await importsOf(folder)) {
        const imported = packageOf(specifier);
        if (imported === undefined || imported === name || dependencies.has(imported)) continue;
        // The testing kit runs inside test files and may import what they import.
        const isTest =
          folder === "test" ||
          folder === "bench" ||
          file.endsWith(".test.ts") ||
          file.startsWith(`${folder}/src/testing/`);
        if (isTest && developmentDependencies.has(imported)) continue;
        // Types do not exist at run time, but a package that a published .d.ts names has to be installed.
        if (developmentDependencies.has(`@types/${imported}`)) continue;
        undeclared.push(`${file}: ${specifier}`);
      }
    }
    assert.deepEqual(undeclared, []);
  });

  it("declare nothing that neither they nor a package of theirs asks for", async () => {
    const unused: string[] = [];
    for (const { folder, dependencies } of await packages()) {
      const wanted = new Set((await importsOf(folder)).map(({ specifier }) => packageOf(specifier)));
      for (const dependency of dependencies) {
        const places = [folder, "."].map((place) => join(ROOT, place, "node_modules", dependency));
        const manifest = join(places.find((place) => existsSync(place)) ?? "", "package.json");
        const { peerDependencies } = JSON.parse(await readFile(manifest, "utf8")) as {
          readonly peerDependencies?: Readonly<Record<string, string>>;
        };
        for (const peer of Object.keys(peerDependencies ?? {})) wanted.add(peer);
      }
      for (const dependency of dependencies)
        if (!wanted.has(dependency.replace(/^@types\//, "")) && dependency !== "@types/node")
          unused.push(`${folder}: ${dependency}`);
    }
    assert.deepEqual(unused, []);
  });

  it("use the packages that the project stands on where they belong", async () => {
    const homes: Readonly<Record<string, RegExp>> = {
      "tsyringe": /^core\/src\/kernel\/scope\.ts$/,
      "koa": /^core\/src\/http\//,
      "@koa/router": /^(core|plugins\/[^/]+)\/src\//,
      "@connectrpc/connect": /^(core|plugins\/(commands|files))\/src\//,
      "@connectrpc/connect-node": /^core\/src\/http\//,
      "@bufbuild/protobuf": /^(core|plugins\/(commands|files))\/src\//,
      "zeromq": /^plugins\/jupyter\/src\/transport\/zeromq-channels\.ts$/,
      "chokidar": /^plugins\/files\/src\/watch\/host-watch\.ts$/,
      "pino": /^core\/src\//,
      "prom-client": /^(core|plugins\/[^/]+)\/src\//,
      "ws": /^(core\/src\/http|plugins\/[^/]+\/src\/testing|test\/src)\//,
      "yaml": /^(core|test|plugins\/(jail-freebsd|templates))\/src\//,
      "zod": /^(core|cli|plugins\/[^/]+)\/src\//,
    };
    const all = (await Promise.all((await packages()).map(({ folder }) => importsOf(folder)))).flat();
    for (const [name, home] of Object.entries(homes)) {
      const users = all.filter(({ specifier }) => packageOf(specifier) === name).map(({ file }) => file);
      const strays = users.filter((file) => !home.test(file) && !file.endsWith(".test.ts"));
      assert.notEqual(users.length, 0, `${name} is imported nowhere`);
      assert.deepEqual(strays, [], `${name} is imported outside of ${home.source}`);
    }
  });
});

describe("the body of a request", () => {
  it("is read in one place, which leaves the connection in use", async () => {
    const strays: string[] = [];
    for (const folder of ["core", ...(await readdir(join(ROOT, "plugins"))).map((name) => `plugins/${name}`)])
      for (const file of await sourcesIn(`${folder}/src`)) {
        const text = await readFile(join(ROOT, folder, "src", file), "utf8");
        if (
          /\b(message|req|request|incoming)\.iterator\(|\bfor await \(.* of (ctx\.)?(message|req|request|incoming)\b(?!\.)/.test(
            text,
          )
        )
          strays.push(`${folder}/src/${file}`);
      }
    assert.deepEqual(strays, ["core/src/http/messages/json-body.ts"]);
  });
});

describe("package-lock.json", () => {
  it("lists the optional binaries of every platform, without which `npm ci` refuses it", async () => {
    const lock = JSON.parse(await readFile(join(ROOT, "package-lock.json"), "utf8")) as {
      readonly packages: Readonly<
        Record<string, { readonly optionalDependencies?: Readonly<Record<string, string>> }>
      >;
    };
    const missing = Object.values(lock.packages)
      .flatMap(({ optionalDependencies }) => Object.keys(optionalDependencies ?? {}))
      .filter((name) => !(`node_modules/${name}` in lock.packages));
    assert.deepEqual(missing, [], "run `npm run generate`");
  });

  it("tells the digest of each package that is downloaded, but of tools on platforms that its registry did not carry", async () => {
    const lock = JSON.parse(await readFile(join(ROOT, "package-lock.json"), "utf8")) as {
      readonly packages: Readonly<Record<string, Readonly<Record<string, unknown>>>>;
    };
    const unknown = Object.entries(lock.packages)
      .filter(
        ([path, { integrity, link }]) =>
          path.startsWith("node_modules/") && integrity === undefined && link !== true,
      )
      // Except optional development packages for other platforms than Linux on x64 with glibc.
      .filter(([, { dev, optional, os, cpu, libc }]) => {
        const platform = [os, cpu, libc ?? "glibc"].flat();
        const isTested = ["linux", "x64", "glibc"].every((part) => platform.includes(part));
        return dev !== true || optional !== true || isTested;
      });
    assert.deepEqual(unknown, []);
  });
});
