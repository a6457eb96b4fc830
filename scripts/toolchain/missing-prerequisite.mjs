/** Something that set-up cannot fetch. Its message is one sentence: what is missing, and how to get it. */
export class MissingPrerequisite extends Error {
  name = "MissingPrerequisite";
}
