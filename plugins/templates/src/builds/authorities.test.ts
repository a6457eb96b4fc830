import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { BuildHost, WITHOUT_BUILDS } from "../testing/build-host.js";

/** In place of that of ca-certificates. */
const UPDATE = `#!/bin/sh
mkdir -p /etc/ssl/certs
cat /usr/local/share/ca-certificates/*.crt > /etc/ssl/certs/ca-certificates.crt
`;

it(
  "templates trust the operator's authorities, and are built anew with other ones",
  { skip: WITHOUT_BUILDS, timeout: 120_000 },
  async (context) => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-authorities-"));
    context.after(() => rm(directory, { recursive: true, force: true }));
    const certificates = join(directory, "authorities.pem");
    const pemOf = (text: string): string =>
      `-----BEGIN CERTIFICATE-----\n${text}\n-----END CERTIFICATE-----\n`;
    await writeFile(certificates, pemOf("first") + pemOf("other"));
    await using host = await BuildHost.open({ builds: { certificates } });
    const reference = await host.addImage("trusting", [
      { name: "usr/sbin/update-ca-certificates", body: UPDATE, mode: 0o755 },
    ]);
    const base = { kind: "image", reference, credentials: undefined } as const;
    const trusted = async (): Promise<string> => {
      const { result } = await host.build({ base });
      const { result: again } = await host.build({ base });
      assert.equal(again.image, result.image);
      return host.run(
        result,
        '. /etc/profile.d/operator-authorities.sh; cat /etc/ssl/certs/ca-certificates.crt; wc -l < "$NODE_EXTRA_CA_CERTS"; for each in /usr/local/share/ca-certificates/*; do echo $each; done; echo $PIP_CERT',
      );
    };
    const files = (last: number) =>
      Array.from(
        { length: last },
        (_, index) => `/usr/local/share/ca-certificates/operator-${index + 1}.crt\n`,
      );
    const bundle = "/etc/ssl/certs/ca-certificates.crt";
    assert.equal(await trusted(), `${pemOf("first")}${pemOf("other")}6\n${files(2).join("")}${bundle}\n`);
    await writeFile(certificates, pemOf("second"));
    assert.equal(await trusted(), `${pemOf("second")}3\n${files(1).join("")}${bundle}\n`);
    const { lines } = await host.build();
    assert.ok(
      lines.some((line) => /does not trust the operator's authorities: it has neither/.test(line)),
      lines.join("\n"),
    );
    await rm(certificates);
    await assert.rejects(host.build({ base }), /certificates of builds.certificates cannot be read/);
    assert.deepEqual(await host.leftovers(), []);
  },
);

it(
  "templates trust authorities that a step has added where Debian's are, and say so once",
  { skip: WITHOUT_BUILDS, timeout: 120_000 },
  async () => {
    await using host = await BuildHost.open({ builds: { certificates: "none" } });
    const reference = await host.addImage("dropped", [
      {
        name: "usr/sbin/update-ca-certificates",
        body: `#!/bin/bash\nshopt -s globstar\n${UPDATE.replace("*.crt", "**/*.crt")}`,
        mode: 0o755,
      },
    ]);
    const base = { kind: "image", reference, credentials: undefined } as const;
    const own = "/usr/local/share/ca-certificates";
    const pem = "-----BEGIN CERTIFICATE-----\\nMIIB own\\nsignature 1\\n=\\n-----END CERTIFICATE-----\\n";
    const add = [
      "RUN",
      `mkdir -p ${own}/company; printf %b '${pem}' > '${own}/company/our own.crt'`,
    ] as const;
    const told = "Trusting new authorities: our own.crt";
    const { result, lines } = await host.build({ base, steps: [["USER", "root"], add] });
    assert.ok(lines.includes(told), lines.join("\n"));
    assert.match(await host.run(result, "cat /etc/ssl/certs/ca-certificates.crt"), /signature 1/);
    const template = { kind: "template", reference: "dropped" } as const;
    host.templates.set("dropped", { ...result, backend: host.backend.name });
    const again = await host.build({
      base: template,
      steps: [
        ["USER", "root"],
        ["RUN", "echo more > /more"],
      ],
    });
    assert.ok(!again.lines.includes(told), again.lines.join("\n"));
    const renewed = ["RUN", `sed -i s/1/2/ ${own}/company/*.crt`] as const;
    const { lines: after } = await host.build({ base: template, steps: [["USER", "root"], renewed] });
    assert.ok(after.includes(told), after.join("\n"));
  },
);
