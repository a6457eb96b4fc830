import assert from "node:assert/strict";
import { it } from "node:test";
import { DockerfileError, parseDockerfile } from "./dockerfile.js";

const DOCKERFILE = String.raw`# syntax=docker/dockerfile:1
FROM debian:12 AS only
RUN apt-get update && \
    apt-get install -y jq
RUN ["echo", "it's  so"]
RUN <<EOF
set -e
echo "$HOME"
EOF
ENV A=1 B="two words" C=$HOME
ENV D some value
ARG X=3
USER root
WORKDIR /a b
COPY --chown=user:user --chmod=755 --link a.txt /b/c.txt
COPY src/*.py ./lib/ /app/
ADD ["with space", "/x"]
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
      ["RUN", String.raw`'echo' 'it'\''s  so'`],
      ["RUN", 'set -e\necho "$HOME"'],
      ["ENV", "A", "1", "B", "two words", "C", "$HOME"],
      ["ENV", "D", "some value"],
      ["ARG", "X", "3"],
      ["USER", "root"],
      ["WORKDIR", "/a b"],
      ["COPY", "a.txt", "/b/c.txt", "user:user", "755"],
      ["COPY", "src/*.py", "/app/", "", ""],
      ["COPY", "lib", "/app/", "", ""],
      ["COPY", "with space", "/x", "", ""],
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
  ["FROM a:$V\n", /^line 1: FROM: variables/],
  ["COPY x\n", /^line 1: COPY: a source and a destination/],
  ["COPY a b c\n", /^line 1: COPY: the destination of several sources/],
  ["COPY $A b\n", /^line 1: COPY: variables/],
  ["COPY a/../../b c\n", /^line 1: COPY: 'a\/..\/..\/b' is outside/],
  ["COPY --from=x a b\n", /^line 1: COPY: '--from=x' is not supported/],
  ["COPY --chown=$U a b\n", /^line 1: COPY: '--chown=\$U' is not/],
  ["ADD https://example.com/a b\n", /^line 1: ADD: only files of the folder/],
  ["COPY <<EOF /a\nx\nEOF\n", /^line 1: COPY: files in the Dockerfile/],
  ["FROM a\nRUN\n", /^line 2: RUN: a command is needed/],
  ["FROM a\nRUN --mount=type=cache,target=/x true\n", /^line 2: RUN: '--mount=type=cache,target=\/x' is not/],
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
