import assert from "node:assert/strict";
import { it } from "node:test";
import { BuildHost, type Step, WITHOUT_BUILDS } from "../testing/build-host.js";

it(
  "a build has more steps than layers can be mounted: they are merged, and nothing of the files changes",
  { skip: WITHOUT_BUILDS, timeout: 240_000 },
  async () => {
    await using host = await BuildHost.open();
    const special =
      "mkdir -m 1770 /odd; cd /odd; echo x > 'a b*'; ln 'a b*' hard; ln -s /nowhere soft; " +
      "chown -h 4321:1234 soft hard; chmod 4711 hard; mkdir empty; rm -r /var";
    const many = Array.from({ length: 100 }, (_, at): Step => ["RUN", `echo ${at} >> ~/lines`]);
    const steps: readonly Step[] = [["RUN", special, "root"], ...many];
    const { result, lines } = await host.build({ steps });
    assert.equal(lines.filter((line) => line.startsWith("There are too many layers")).length, 1);
    const look =
      "wc -l < ~user/lines; cd /odd; stat -c '%n %U %u:%g %a %h %F' . * | sort; readlink soft; cat hard; ls -d /proc/1 /var 2>&1";
    assert.deepEqual((await host.run(result, look)).trim().split("\n"), [
      "100",
      ". root 0:0 1770 3 directory",
      "a b* UNKNOWN 4321:1234 4711 2 regular file",
      "empty root 0:0 755 2 directory",
      "hard UNKNOWN 4321:1234 4711 2 regular file",
      "soft UNKNOWN 4321:1234 777 1 symbolic link",
      "/nowhere",
      "x",
      "ls: /var: No such file or directory",
      "/proc/1",
    ]);
    assert.deepEqual(await host.leftovers(), []);
    const again = await host.build({ steps });
    assert.ok(again.lines.slice(1, -1).every((line) => line.startsWith("CACHED")));
  },
);
