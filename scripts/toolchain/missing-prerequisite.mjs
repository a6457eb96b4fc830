/** A prerequisite that set-up cannot fetch. Its message is one sentence: what is missing, and how to get it. */
export class MissingPrerequisite extends Error {
  name = "MissingPrerequisite";
}

const NPM = process.platform === "freebsd" ? "pkg install npm-node24" : "apt-get install npm";
export const NPM_MISSING = `npm is missing: install it with \`${NPM}\`, or with Node itself.`;
