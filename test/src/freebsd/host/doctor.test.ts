import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { type JailSettings, serviceProblems, trialProblems } from "@coppice/plugin-jail-freebsd";
import { startCoppice } from "../../harness/server/coppice-command.js";
import {
  AGENT_INSIDE,
  openFreebsdHost,
  reasonWithoutFreebsdHost,
} from "../../harness/freebsd/freebsd-host.js";

const ROOT = fileURLToPath(new URL("../../../..", import.meta.url));
const EXAMPLE = join(ROOT, "config", "freebsd.yaml");
const listeners = { api: { host: "127.0.0.1", port: 0 } };
const key = { COPPICE_API_KEY: "k".repeat(40) };

async function linesOf(...args: readonly string[]): Promise<readonly string[]> {
  const { stdout, stderr } = await startCoppice(args, key).end;
  return `${stdout.toString()}${stderr}`.split("\n");
}

describe("what comes with the project for FreeBSD", () => {
  it("has a configuration that coppice check takes", async () => {
    const { code, stderr } = await startCoppice(["check", EXAMPLE], key).end;
    assert.equal(code, 0, stderr);
  });

  it(
    "has scripts that sh(1) can read, and the smoke test refuses another system",
    { skip: process.platform === "freebsd" && "this is FreeBSD" },
    () => {
      const smoke = join(ROOT, "scripts", "freebsd-smoke.sh");
      for (const script of [smoke, join(ROOT, "config", "freebsd", "coppice.rc")]) {
        execFileSync("/bin/sh", ["-n", script]);
      }
      assert.equal(spawnSync(smoke, [], { stdio: "ignore" }).status, 64);
      const refused = spawnSync(smoke, ["zroot"], { encoding: "utf8" });
      assert.equal(refused.status, 69);
      assert.match(refused.stderr, /the tests run elsewhere with stand-ins/);
    },
  );

  it("has a snippet for every file that the documentation has an operator take over", async () => {
    const text = await readFile(join(ROOT, "docs", "freebsd.md"), "utf8");
    for (const name of await readdir(join(ROOT, "config", "freebsd"))) {
      assert.ok(text.includes(`config/freebsd/${name}`), `docs/freebsd.md does not name ${name}`);
    }
  });

  it("is installed in a directory of hier(7), which the service and the documentation agree on", async () => {
    const service = await readFile(join(ROOT, "config/freebsd/coppice.rc"), "utf8");
    const steps = await readFile(join(ROOT, "docs", "freebsd.md"), "utf8");
    const [, directory = ""] = /^: \$\{coppice_dir:="(.*)"\}$/m.exec(service) ?? [];
    assert.match(directory, /^\/usr\/local\/libexec\//);
    assert.ok(steps.includes(`git clone <this repository> ${directory} &&`));
  });
});

describe("coppice doctor, with jail-freebsd", () => {
  it("names every program that is missing, and the setting that says where it is", async () => {
    const directory = await mkdtemp(join(tmpdir(), "cd-"));
    const config = join(directory, "config.yaml");
    const programs = {
      zfs: join(directory, "zfs"),
      jail: join(directory, "jail"),
    };
    const jails = { directory: join(directory, "d"), programs, network: { kind: "vnet" } };
    await writeFile(
      config,
      JSON.stringify({ listeners, dataDir: join(directory, "data"), plugins: { "jail-freebsd": jails } }),
    );
    try {
      const lines = await linesOf("doctor", config);
      for (const [name, path] of Object.entries(programs)) {
        const start = `FAIL  jail-freebsd: there is no program ${path} -> `;
        const line = lines.find((each) => each.startsWith(start));
        assert.match(line ?? lines.join("\n"), new RegExp(`set jail-freebsd\\.programs\\.${name}$`));
      }
      assert.ok(
        lines.some((line) =>
          line.startsWith("FAIL  backend jail-freebsd: jail-freebsd cannot use this host"),
        ),
      );
    } finally {
      await rm(directory, { recursive: true });
    }
  });

  it(
    "says what a host can do that lacks nothing, and how to mend one that does",
    { skip: reasonWithoutFreebsdHost() ?? false },
    async () => {
      await using host = await openFreebsdHost({ isConnected: true });
      const write = async (settings: object) => {
        const path = join(host.directory, "config.yaml");
        const plugins = { "jail-freebsd": { ...host.configuration, ...settings } };
        await writeFile(path, JSON.stringify({ listeners, dataDir: join(host.directory, "data"), plugins }));
        return path;
      };
      const whole = await linesOf("doctor", await write({}));
      assert.ok(whole.includes("ok    backend jail-freebsd: this host can run it"), whole.join("\n"));
      assert.ok(
        whole.includes(
          "ok    jail-freebsd: sandboxes may reach the internet, from 10.78.0.0/20 by coppicenet0",
        ),
      );
      assert.ok(
        whole.some((line) => line.startsWith("warn  jail-freebsd: no release of this backend has run on")),
      );
      assert.ok(whole.some((line) => line.startsWith("ok    jail-freebsd: memoryMiB: ")));
      assert.ok(
        whole.includes("ok    jail-freebsd: the commands that make a sandbox work"),
        whole.join("\n"),
      );
      const restarts = "ok    jail-freebsd: daemon(8) begins a server again whose sandboxes live on";
      assert.ok(whole.includes(restarts), whole.join("\n"));
      const install = "env ASSUME_ALWAYS_YES=yes pkg install";
      const unpacked = `warn  jail-freebsd: pkg -N: pkg: pkg is not installed -> ${install} git npm-node24`;
      assert.ok(whole.includes(unpacked), whole.join("\n"));
      // The list of those that the host has.
      const packages = join(host.directory, "state", "host-packages");
      await writeFile(packages, "gitea\ngit-lite\nnode24\n");
      const some = await linesOf("doctor", await write({}));
      const npm = "packages of the host are missing: npm-node24";
      assert.ok(some.includes(`warn  jail-freebsd: ${npm} -> ${install} npm-node24`), some.join("\n"));
      const noBase =
        "there is no snapshot coppice/jails/none@base: without a recipe that builds it, no sandbox has the template base -> docs/freebsd.md#templates, by a recipe or by hand";
      const templates = { base: { snapshot: "coppice/jails/none@base" } };
      const withoutBase = await linesOf("doctor", await write({ templates }));
      for (const line of [
        "ok    backend jail-freebsd: this host can run it",
        `warn  jail-freebsd: ${noBase}`,
        restarts,
      ]) {
        assert.ok(withoutBase.includes(line), withoutBase.join("\n"));
      }
      assert.ok(
        withoutBase.some((line) =>
          line.startsWith("warn  jail-freebsd: the commands that make a sandbox were not"),
        ),
      );
      const [real, link] = [join(host.directory, "r"), join(host.directory, "l")];
      await mkdir(real);
      await symlink(real, link);
      const lacking = await linesOf(
        "doctor",
        await write({
          devfsRuleset: 7,
          directory: link,
          network: { kind: "vnet", range: "10.79.0.0/20", anchor: "other" },
          templates,
        }),
      );
      for (const line of [
        `FAIL  jail-freebsd: directory ${link} is ${real}, by a symbolic link -> set jail-freebsd.directory to ${real}`,
        `warn  jail-freebsd: ${noBase}`,
        "FAIL  jail-freebsd: devfs has no ruleset 7 that hides what sandboxes must not see -> take over config/freebsd/devfs.rules, then service devfs restart",
        'FAIL  jail-freebsd: pf\'s rules have no anchor "other/*" -> take over config/freebsd/pf.conf, then service pf reload',
      ]) {
        assert.ok(lacking.includes(line), lacking.join("\n"));
      }
      assert.ok(
        lacking.some((line) =>
          line.startsWith(
            "FAIL  jail-freebsd: there is no bridge coppicenet0 with the address 10.79.0.1/20 -> ifconfig bridge create",
          ),
        ),
      );
    },
  );

  it(
    "tries every command in the life of a sandbox, names those that fail, and leaves nothing",
    { skip: reasonWithoutFreebsdHost() ?? false },
    async () => {
      await using host = await openFreebsdHost({ isConnected: true });
      const broken = join(host.directory, "broken");
      await mkdir(broken);
      const problemsWith = async (settings: Partial<JailSettings> = {}) => {
        const backend = host.backend(settings);
        assert.deepEqual(await backend.problems(), []);
        const problems = await trialProblems(await backend.look(), { ...host.settings, ...settings });
        await backend.close();
        return problems;
      };
      assert.deepEqual(await problemsWith(), []);
      const { programs } = host.settings;
      for (const [program, words] of [
        ["rctl", "-a *"],
        ["rctl", "-u *"],
        ["rctl", "-r *"],
        ["pfctl", "* -f -"],
        ["jail", "* -c *"],
        ["jail", "* -r *"],
        ["ifconfig", "-j * lo0 *"],
        ["ifconfig", "epair* create"],
        ["ifconfig", "epair* ether *"],
        ["ifconfig", "epair* group *"],
        ["ifconfig", "* addm *"],
        ["ifconfig", "epair* destroy"],
        ["arp", "-S *"],
        ["arp", "-d *"],
        ["route", "*"],
        ["pkill", "*"],
        ["ps", "*"],
      ] as const) {
        const path = join(broken, program);
        const script = `case "$*" in ${words.replaceAll(" ", "\\ ")}) echo "not here" >&2; exit 3;; esac`;
        await writeFile(path, `#!/bin/sh\n${script}\nexec ${programs[program]} "$@"\n`, { mode: 0o755 });
        const problems = await problemsWith({ programs: { ...programs, [program]: path } });
        const start = `${program} ${words.split("*")[0]}`;
        const named = problems.filter(
          ({ message, fix }) => message.startsWith(start) && message.endsWith(": not here") && fix !== "",
        );
        assert.ok(named.length > 0, `${program} ${words}: ${JSON.stringify(problems)}`);
        // A part that could not be removed goes at the beginning of the next trial.
        if ((await host.leaks()).length === 0) continue;
        assert.deepEqual(await problemsWith(), [], `after ${program} ${words}`);
        assert.deepEqual(await host.leaks(), []);
      }
      for (const words of ["clone *", "destroy */doctor-trial"]) {
        const path = join(broken, "zfs");
        const script = `case "$*" in ${words.replaceAll(" ", "\\ ")}) echo "not here" >&2; exit 3;; esac`;
        await writeFile(path, `#!/bin/sh\n${script}\nexec ${programs.zfs} "$@"\n`, { mode: 0o755 });
        const problems = await problemsWith({ programs: { ...programs, zfs: path } });
        assert.ok(problems.some(({ message }) => /^zfs (clone|destroy) .*not here$/.test(message)));
        assert.deepEqual(await problemsWith(), [], `after zfs ${words}`);
        assert.deepEqual(await host.leaks(), []);
      }
      const instead = async (program: "rctl" | "sysctl", script: string) => {
        await writeFile(join(broken, program), `#!/bin/sh\n${script}\n`, { mode: 0o755 });
        return { programs: { ...programs, [program]: join(broken, program) } };
      };
      // Ends with 0, but tells the usage of one jail alone.
      const one = await instead("rctl", `[ "$1" != -u ] || set -- -u "$2"; exec ${programs.rctl} "$@"`);
      const [usage] = await problemsWith(one);
      assert.match(usage?.message ?? "", /^rctl -u jail:coppice-doctor jail:coppice-doctor:/);
      const backend = host.backend(await instead("sysctl", "exit 0"));
      const [parameters] = await backend.problems();
      assert.match(parameters?.message ?? "", /^sysctl -N security\.jail\.param lists nothing/);
      await backend.close();
      // An agent that does not run in the jail.
      const script = await readFile(host.settings.agent ?? "", "utf8");
      const elsewhere = join(broken, "agent");
      await writeFile(elsewhere, script.replaceAll(AGENT_INSIDE, "/nowhere"), { mode: 0o755 });
      const [agent] = await problemsWith({ agent: elsewhere });
      assert.match(agent?.message ?? "", /^jexec coppice-doctor \/bin\/sh -c .*coppice-agent/);
      assert.match(agent?.fix ?? "", /npm run setup/);
      assert.deepEqual(await host.leaks(), []);
    },
  );

  it(
    "tries whether daemon(8) begins a server again whose agent lives on, and leaves nothing",
    { skip: reasonWithoutFreebsdHost() ?? false },
    async () => {
      await using host = await openFreebsdHost();
      const broken = join(host.directory, "broken");
      const folder = join(host.directory, "d");
      const first = host.backend();
      assert.deepEqual(await first.problems(), []);
      await first.close();
      const before = await readdir(folder);
      /** @param script what stands in for daemon(8), instead of its stand-in. */
      const problemsWith = async (script?: string) => {
        if (script !== undefined) await writeFile(broken, `#!/bin/sh\n${script}\n`, { mode: 0o755 });
        const daemon = script === undefined ? host.settings.programs.daemon : broken;
        const programs = { ...host.settings.programs, daemon };
        const backend = host.backend({ programs });
        const problems = await serviceProblems(await backend.look(), { ...host.settings, programs });
        await backend.close();
        assert.deepEqual(await readdir(folder), before);
        const running = await host.run("/usr/bin/ps", "-e", "-o", "args=");
        assert.doesNotMatch(running, /coppice-doctor|restarted-server/);
        return problems;
      };
      assert.deepEqual(await problemsWith(), []);
      const [absent] = await problemsWith('echo "not here" >&2; exit 3');
      assert.match(absent?.message ?? "", /^daemon -f -r -R 1 -S -T coppice-doctor .*: not here$/);
      // Without -r.
      const [once] = await problemsWith('shift 2; exec "${0%/*}/bin/daemon" -f "$@"');
      assert.match(once?.message ?? "", /^daemon\(8\) has begun a program once, and not again after its end/);
      assert.match(once?.fix ?? "", /service coppice restart/);
    },
  );

  it(
    "warns of a template without the shell of E2B's SDKs, and takes the packages of the documentation",
    { skip: reasonWithoutFreebsdHost() ?? false },
    async () => {
      await using host = await openFreebsdHost({ userland: "freebsd" });
      const steps = await readFile(join(ROOT, "docs", "freebsd.md"), "utf8");
      const [, packages = ""] = /^# env ASSUME_ALWAYS_YES=yes pkg install (.*)$/m.exec(steps) ?? [];
      await writeFile(join(host.directory, "state", "host-packages"), packages.replaceAll(" ", "\n"));
      const path = join(host.directory, "config.yaml");
      const plugins = { "jail-freebsd": host.configuration };
      await writeFile(path, JSON.stringify({ listeners, dataDir: join(host.directory, "data"), plugins }));
      const lines = await linesOf("doctor", path);
      assert.ok(
        lines.some((line) =>
          /^warn {2}jail-freebsd: jexec coppice-doctor \/bin\/bash -l -c true: .* -> pkg -r <its root> install bash/.test(
            line,
          ),
        ),
        lines.join("\n"),
      );
      assert.ok(
        lines.includes("ok    jail-freebsd: the commands that make a sandbox work"),
        lines.join("\n"),
      );
      const packed = "ok    jail-freebsd: pkg(8) works, and set-up has its packages";
      assert.ok(lines.includes(packed), lines.join("\n"));
      assert.deepEqual(await host.leaks(), []);
    },
  );
});
