import assert from "node:assert/strict";
import { it } from "node:test";
import { DockerfileError, parseDockerfile } from "./dockerfile.js";

const DOCKERFILE = String.raw`# syntax=docker/dockerfile:1
FROM debian:12 AS only
RUN apt-get update && \
    apt-get install -y jq
RUN ["echo", "it's"]
RUN <<EOF
set -e
echo "$HOME"
EOF
ENV A=1 B="two words" C=$HOME
ENV D some value
ARG X=3
USER root
WORKDIR /a b
EXPOSE 80
VOLUME /data
LABEL x=y
ENTRYPOINT ["python3", "-m", "http.server"]
CMD 8000
`.replaceAll("\\\\", "\\");

it("a Dockerfile is the image, the steps and the start command", () => {
  const { image, steps, startCommand } = parseDockerfile(DOCKERFILE);
  assert.equal(image, "debian:12");
  assert.deepEqual(
    steps.map(({ type, args }) => [type, ...args]),
    [
      ["RUN", "apt-get update &&     apt-get install -y jq"],
      ["RUN", String.raw`'echo' 'it'\''s'`],
      ["RUN", 'set -e\necho "$HOME"'],
      ["ENV", "A", "1", "B", "two words", "C", "$HOME"],
      ["ENV", "D", "some value"],
      ["ARG", "X", "3"],
      ["USER", "root"],
      ["WORKDIR", "/a b"],
    ],
  );
  assert.equal(startCommand, "'python3' '-m' 'http.server' 8000");
});

it("steps alone have no image and no start command", () => {
  const { image, steps, startCommand } = parseDockerfile("RUN true\n");
  assert.deepEqual([image, steps.length, startCommand], [undefined, 1, undefined]);
});

for (const [text, reason] of [
  ["FROM a\nFROM b\n", /^line 2: FROM: several stages/],
  ["FROM a\nCOPY x y\n", /^line 2: COPY: this instruction is not supported/],
  ["FROM a\nRUN\n", /^line 2: RUN: a command is needed/],
  ["FROM a\nUSER\n", /^line 2: USER: a value is needed/],
  ["FROM a\nENV\n", /^line 2: ENV: a name and a value are needed/],
  ["FROM a\nNONSENSE x\n", /^line 2: NONSENSE: this instruction/],
] as const) {
  it(`${JSON.stringify(text)} is refused with its line`, () => {
    assert.throws(
      () => parseDockerfile(text),
      (error: unknown) => error instanceof DockerfileError && reason.test(error.message),
    );
  });
}
