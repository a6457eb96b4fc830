import type { Sandbox } from "@coppice/core/backend";
import { runScript } from "../guest/guest-run.js";

/** Prints a line for each package, `deb bash 5.2.15-2`. Nothing is written, or the image would change. */
const LIST = `
has() { command -v "$1" > /dev/null; }
has dpkg-query && dpkg-query --show --showformat='deb \${Package} \${Version}\n'
has rpm && rpm -qa --queryformat='rpm %{NAME} %{VERSION}-%{RELEASE}\n'
has pacman && pacman -Q | sed 's/^/pacman /'
[ -f /lib/apk/db/installed ] && sed -n 's/^P:/apk /p; s/^V://p' /lib/apk/db/installed | paste -d' ' - -
has pkg && pkg query 'pkg %n %v'
has python3 && python3 -I -B -c '
import importlib.metadata
for one in importlib.metadata.distributions():
    print("pip", one.metadata["Name"], one.version)
'
npm=$(readlink -f "$(command -v npm)") && has node && node -e '
for (const path of process.argv.slice(1)) {
  try {
    const { name, version } = require(path);
    console.log("npm", name, version);
  } catch {}
}
' "\${npm%/*}"/../../*/package.json "\${npm%/*}"/../../@*/*/package.json \\
  /usr/local/lib/node_modules/*/package.json /usr/local/lib/node_modules/@*/*/package.json
exit 0
`;
const LINE = /^(deb|rpm|pacman|apk|pkg|pip|npm) \S+ \S+$/;

/** Lists the packages of an image, sorted, each as `kind name version`. A guest may print anything. */
export async function listContents(sandbox: Sandbox, signal: AbortSignal): Promise<readonly string[]> {
  const { stdout } = await runScript(sandbox, LIST, { args: [], shell: "sh", signal });
  return [...new Set(stdout.split("\n").filter((line) => LINE.test(line)))].toSorted();
}
