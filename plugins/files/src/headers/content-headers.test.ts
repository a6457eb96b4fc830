import assert from "node:assert/strict";
import { it } from "node:test";
import { inlineDisposition, pagePolicy, typeByContent, typeByName } from "./content-headers.js";

it("The type comes from the extension, with a charset for text", () => {
  assert.equal(typeByName("a.TXT"), "text/plain; charset=utf-8");
  assert.equal(typeByName("a.json"), "application/json");
  assert.equal(typeByName("a.png"), "image/png");
  for (const name of ["Makefile", ".html", "a.", "a.nosuchextension"]) {
    assert.equal(typeByName(name), undefined, name);
  }
});

it("Content without control bytes is text, and never HTML", () => {
  assert.equal(typeByContent(Buffer.from("<html>ü\r\n\t\u001b[0m")), "text/plain; charset=utf-8");
  assert.equal(typeByContent(new Uint8Array()), "text/plain; charset=utf-8");
  assert.equal(typeByContent(Uint8Array.of(104, 0, 105)), "application/octet-stream");
});

it("A file name is bare, quoted or encoded, whatever it needs", () => {
  assert.equal(inlineDisposition("x.txt"), "inline; filename=x.txt");
  assert.equal(inlineDisposition("a b.txt"), 'inline; filename="a b.txt"');
  assert.equal(inlineDisposition('a"b\\c'), 'inline; filename="a\\"b\\\\c"');
  assert.equal(inlineDisposition("ü 1%.txt"), "inline; filename*=utf-8''%C3%BC%201%25.txt");
  assert.equal(inlineDisposition("a\r\nx: y"), "inline; filename*=utf-8''a%0D%0Ax%3A%20y");
});

it("A type that a browser runs as a page gets an opaque origin, and no other does", () => {
  for (const name of ["a.html", "a.xhtml", "a.svg", "a.xml", "a.rss", "a.mathml"])
    assert.match(pagePolicy(typeByName(name) ?? "") ?? "", /^sandbox (?!.*allow-same-origin)/, name);
  for (const name of ["a.txt", "a.pdf", "a.png", "a.js"])
    assert.equal(pagePolicy(typeByName(name) ?? ""), undefined, name);
});
